"""Time of a private step of JAX-Privacy, as a ratio to a plain JAX step of the same model, measured in one run.

    make peers && .venv-peers/bin/python -m bench.jax_privacy_step --save results/bench_jax_privacy.json

It imports neither torch nor Sordino. The models are those of `bench.step` with the same shapes. Both steps are
compiled. The private step clips the gradient of each example to norm 1, adds noise and updates the weights; it has no
sampling. The fastest of the given micro-batch sizes counts. `bench.step` times Sordino on the same machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median

import jax
import jax.numpy as jnp
import jax_privacy

_MICRO_BATCHES = (None, 16, 64)
_SECONDS, _FEWEST = 10.0, 3


def dense(key, inputs, outputs):
    return jax.random.normal(key, (inputs, outputs)) / jnp.sqrt(inputs), jnp.zeros(outputs)


def conv(key, inputs, outputs, size):
    return jax.random.normal(key, (outputs, inputs, size, size)) / jnp.sqrt(inputs * size**2), jnp.zeros(outputs)


def convolved(x, layer, stride=1, padding=0):
    weight, bias = layer
    y = jax.lax.conv_general_dilated(x, weight, (stride, stride), [(padding, padding)] * 2)
    return y + bias[None, :, None, None]


def pooled(x, stride):
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, stride, stride), "VALID")


def mlp():
    """MLP with one hidden layer of 512 on 784 inputs."""
    first, second = jax.random.split(jax.random.key(0))
    return [dense(first, 784, 512), dense(second, 512, 10)], _mlp, (784,)


def _mlp(layers, x):
    (weight, bias), (weight_out, bias_out) = layers
    return jnp.tanh(x @ weight + bias) @ weight_out + bias_out


def dp_cnn_small():
    """DP-CNN/S: 26,010 parameters."""
    keys = jax.random.split(jax.random.key(0), 4)
    layers = [conv(keys[0], 1, 16, 8), conv(keys[1], 16, 32, 4), dense(keys[2], 512, 32), dense(keys[3], 32, 10)]
    return layers, _dp_cnn_small, (1, 28, 28)


def _dp_cnn_small(layers, x):
    x = pooled(jnp.tanh(convolved(x, layers[0], stride=2, padding=2)), 1)
    x = pooled(jnp.tanh(convolved(x, layers[1], stride=2)), 1).reshape(len(x), -1)
    return jnp.tanh(x @ layers[2][0] + layers[2][1]) @ layers[3][0] + layers[3][1]


def dp_cnn():
    """DP-CNN: 550,570 parameters."""
    widths, keys = [3, 32, 32, 64, 64, 128, 128], jax.random.split(jax.random.key(0), 8)
    layers = [conv(keys[i], widths[i], widths[i + 1], 3) for i in range(6)]
    return [*layers, dense(keys[6], 2048, 128), dense(keys[7], 128, 10)], _dp_cnn, (3, 32, 32)


def _dp_cnn(layers, x):
    for depth, layer in enumerate(layers[:6]):
        x = jnp.tanh(convolved(x, layer, padding=1))
        x = pooled(x, 2) if depth % 2 else x
    x = x.reshape(len(x), -1)
    return jnp.tanh(x @ layers[6][0] + layers[6][1]) @ layers[7][0] + layers[7][1]


MODELS = {"mlp": mlp, "dp-cnn-s": dp_cnn_small, "dp-cnn": dp_cnn}


def steps_of(name, batch_size):
    """The plain step, and the private step for each micro-batch size, as functions without arguments."""
    layers, forward, shape = MODELS[name]()
    x = jax.random.normal(jax.random.key(1), (batch_size, *shape))
    y = jax.random.randint(jax.random.key(2), (batch_size,), 0, 10)

    def loss(layers, x, y):
        return -jnp.take_along_axis(jax.nn.log_softmax(forward(layers, x)), y[:, None], axis=1).sum()

    def descended(layers, gradient):
        return jax.tree.map(lambda p, g: p - 0.01 / batch_size * g, layers, gradient)

    plain = jax.jit(lambda layers, key: descended(layers, jax.grad(loss)(layers, x, y)))

    def private(micro_batch):
        clipped = jax_privacy.clipped_grad(loss, l2_clip_norm=1.0, batch_argnums=(1, 2), microbatch_size=micro_batch)

        def step(layers, key):
            total = clipped(layers, x, y)
            leaves, tree = jax.tree.flatten(total)
            keys = jax.random.split(key, len(leaves))
            noisy = [g + jax.random.normal(k, g.shape) for g, k in zip(leaves, keys, strict=True)]
            return descended(layers, tree.unflatten(noisy))

        return jax.jit(step)

    sizes = [size for size in _MICRO_BATCHES if size is None or size < batch_size]
    return layers, plain, {size: private(size) for size in sizes}


def milliseconds(step, layers, seconds=_SECONDS):
    """Median time of the steps that fit into `seconds`, after one step for compilation."""
    jax.block_until_ready(step(layers, jax.random.key(0)))
    times, begun = [], time.perf_counter()
    while len(times) < _FEWEST or time.perf_counter() - begun < seconds:
        start = time.perf_counter()
        layers = jax.block_until_ready(step(layers, jax.random.key(len(times))))
        times.append(time.perf_counter() - start)
    return 1000 * median(times)


def measured(name, batch_size):
    """Measures one row: plain and private milliseconds, and their ratio."""
    layers, plain, private = steps_of(name, batch_size)
    plain_ms = milliseconds(plain, layers)
    by_size = {size: milliseconds(step, layers) for size, step in private.items()}
    best = min(by_size, key=by_size.get)
    return {
        "model": name,
        "batch_size": batch_size,
        "plain_ms": plain_ms,
        "jax_privacy_ms": by_size[best],
        "micro_batch": best,
        "ratio_to_plain": by_size[best] / plain_ms,
        "parameters": sum(p.size for p in jax.tree.leaves(layers)),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    arguments.add_argument("--batch-size", type=int, default=256)
    arguments.add_argument("--save", type=Path)
    chosen = arguments.parse_args()
    rows = [measured(name, chosen.batch_size) for name in chosen.models]
    for row in rows:
        print(json.dumps(row))
    if chosen.save is not None:
        folder = Path(__file__).parent
        commit = subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        versions = f"jax {version('jax')}, jax-privacy {version('jax-privacy')}"
        origin = {
            "command": "python -m bench.jax_privacy_step " + " ".join(sys.argv[1:]),
            "commit": commit.stdout.strip(),
            "machine": f"{platform.machine()}, {jax.local_device_count()} device of JAX, {versions}",
        }
        chosen.save.write_text(json.dumps(origin | {"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
