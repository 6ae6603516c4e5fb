"""Where the gated model comes from: training a two-layer ReLU network is a convex program (Pilanci and Ergen 2020).

For squared loss and weight decay, the best network f(x) = sum_j relu(x.w_j) a_j has the value of

    min  1/2 |sum_i D_i X (v_i - u_i) - y|^2 + beta sum_i (|v_i| + |u_i|)    with v_i, u_i in the cone of D_i,

where D_i are all patterns 1(X u >= 0), and the cone of D_i are the vectors that have this pattern. Without the cones it
is the gated ReLU network; with random patterns instead of all, the model that is trained privately. It is here
to be understood: n of about 15 rows in 2 or 3 dimensions, and nothing private.

All three are the same problem: the fewest atoms g, with weights c > 0, such that sum c g is near y. An atom is D_i X u
with |u| = 1, u in the cone or anywhere, of either sign. It is solved by generating atoms: the one that the residual
asks for most, in each pattern, then the best weights of all so far. The same search bounds the optimum from below: the
residual, scaled until no atom exceeds beta on it, is feasible for the dual. So the result carries its own proof.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from sordino._input import validate
from sordino.errors import UsageError
from sordino_papers.hidden_state.arrangements import Array, arrangements, into_cone

Patterns = NDArray[np.bool_]
_ROUNDS = 300
_TOLERANCE = 1e-5
_EDGE = 1e-4


@dataclass(frozen=True)
class Optimum:
    """An objective that was reached, a bound below which nothing can be, and the outputs on the rows."""

    value: float
    lower_bound: float
    outputs: Array


@dataclass(frozen=True)
class Problem:
    """Rows X (n, d), numbers y (n,) and the strength beta of the weight decay.

    >>> problem = Problem(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([1.0, 0.0]), beta=0.5)
    >>> round(problem.with_cones().value, 4)
    0.375
    """

    rows: Array
    target: Array
    beta: float

    def __post_init__(self) -> None:
        validate.positive(beta=self.beta)
        if self.rows.ndim != 2 or self.rows.shape[1] < 2 or self.target.shape != self.rows.shape[:1]:
            raise UsageError(
                "rows must be (n, d) with d at least 2 and the target (n,), "
                f"got {self.rows.shape} and {self.target.shape}."
            )

    def with_cones(self) -> Optimum:
        """The optimum of the convex program over all patterns, which is that of the ReLU network."""
        patterns = arrangements(self.rows)

        def nearest(vectors: Array) -> Array:
            pairs = zip(patterns, vectors, strict=True)
            return np.stack([into_cone(self.rows, pattern, vector) for pattern, vector in pairs])

        return self._solve(patterns, nearest)

    def without_cones(self, patterns: Patterns) -> Optimum:
        """The optimum of the gated network with these patterns. With all patterns it is at most that of the cones."""
        return self._solve(np.unique(patterns, axis=0), lambda vectors: vectors)

    def _solve(self, patterns: Patterns, nearest: Callable[[Array], Array]) -> Optimum:
        """Generates atoms until objective and bound agree to a relative 1e-5."""
        atoms, weights = np.zeros((len(self.target), 0)), np.zeros(0)
        best_bound = 0.0
        for _ in range(_ROUNDS):
            outputs = atoms @ weights
            residual = self.target - outputs
            value = float(residual @ residual / 2 + self.beta * weights.sum())
            asked, strongest = self._atoms_for(residual, patterns, nearest)
            best_bound = max(best_bound, self._dual(residual, strongest))
            if value - best_bound <= _TOLERANCE * value:
                break
            atoms = np.concatenate([atoms[:, weights > 0], asked], axis=1)
            weights = _best_weights(atoms, self.target, self.beta)
        return Optimum(value, best_bound, outputs)

    def _atoms_for(self, residual: Array, patterns: Patterns, nearest: Callable[[Array], Array]) -> tuple[Array, float]:
        """For each pattern and sign the atom with the largest product with the residual; and the largest of these."""
        found = []
        for sign in (1.0, -1.0):
            directions = nearest(sign * (patterns * residual) @ self.rows)
            norms = np.linalg.norm(directions, axis=1)
            asked = norms > self.beta
            units = directions[asked] / norms[asked, None]
            found.append((sign * patterns[asked].T * (self.rows @ units.T), float(norms.max())))
        return np.concatenate([atoms for atoms, _ in found], axis=1), max(norm for _, norm in found)

    def _dual(self, residual: Array, strongest: float) -> float:
        """1/2 |y|^2 - 1/2 |r - y|^2 at a multiple r of the residual: the best one on which no atom exceeds beta."""
        largest = self.beta / strongest if strongest > 0 else np.inf
        feasible = min(largest, float(residual @ self.target / (residual @ residual))) * residual
        distance = feasible - self.target
        return float(self.target @ self.target - distance @ distance) / 2


def train_networks(problem: Problem, *, width: int, restarts: int, steps: int, seed: int) -> Array:
    """The objectives of ReLU networks after training by Adam: 1/2 |f(X) - y|^2 + beta/2 (|W|^2 + |a|^2).

    At the optimum the norms of a unit's two weights agree, and then this is the objective of the convex program. Steps
    fall to zero: a quasi-Newton method would stay at the first kink that it meets.
    """
    units = np.random.default_rng(seed).normal(size=(restarts, problem.rows.shape[1] + 1, width)) * 0.3
    mean, square = np.zeros_like(units), np.zeros_like(units)
    for step in range(1, steps + 1):
        _, gradient = _objectives(problem, units)
        mean += 0.1 * (gradient - mean)
        square += 0.001 * (gradient**2 - square)
        size = 0.06 * (1 - step / steps) / (1 - 0.9**step)
        units -= size * mean / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
    return _objectives(problem, units)[0]


def _objectives(problem: Problem, units: Array) -> tuple[Array, Array]:
    """For each restart, the objective and its gradient. The last row of `units` holds the outgoing weights."""
    incoming, outgoing = units[:, :-1], units[:, -1]
    hidden = np.maximum(problem.rows @ incoming, 0.0)
    residual = (hidden @ outgoing[:, :, None])[:, :, 0] - problem.target
    by_incoming = problem.rows.T @ ((hidden > 0) * (residual[:, :, None] * outgoing[:, None, :]))
    by_outgoing = residual[:, None, :] @ hidden
    gradient = np.concatenate([by_incoming, by_outgoing], axis=1) + problem.beta * units
    return (residual**2).sum(axis=1) / 2 + problem.beta / 2 * (units**2).sum(axis=(1, 2)), gradient


def _best_weights(atoms: Array, target: Array, beta: float) -> Array:
    """The c >= 0 that makes 1/2 |atoms c - y|^2 + beta sum(c) smallest, with at most n + 1 that are not zero.

    One more row, e for every atom and -beta / e for its target, adds beta sum(c) and e^2/2 sum(c)^2, which is nothing.
    """
    rows = np.vstack([atoms, np.full(atoms.shape[1], _EDGE)])
    weights: Array = nnls(rows, np.append(target, -beta / _EDGE))[0]
    return weights
