"""Recurrent networks and state space models."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from bench.architecture_models.dense import mlp
from bench.architecture_models.kinds import CLASSES, Case, Net, classes, kind, tokens, vectors, weights

STEPS, INPUTS, HIDDEN = 7, 5, 8


def series(model: nn.Module, rows: int) -> Case:
    return vectors(model, rows, STEPS, INPUTS)


def last_of(layer: nn.Module, features: int = HIDDEN) -> nn.Module:
    """A classifier of the last output of a recurrent layer."""
    return Net(lambda m, x: m.head(m.layer(x)[0][:, -1]), layer=layer, head=nn.Linear(features, CLASSES))


@kind()
def simple_recurrence(rows: int) -> Case:
    return series(last_of(nn.RNN(INPUTS, HIDDEN, nonlinearity="relu", batch_first=True)), rows)


@kind()
def gru(rows: int) -> Case:
    return series(last_of(nn.GRU(INPUTS, HIDDEN, num_layers=2, batch_first=True)), rows)


@kind()
def lstm(rows: int) -> Case:
    return series(last_of(nn.LSTM(INPUTS, HIDDEN, batch_first=True)), rows)


@kind()
def lstm_both_ways(rows: int) -> Case:
    layer = nn.LSTM(INPUTS, HIDDEN, num_layers=2, bidirectional=True, batch_first=True)
    return series(last_of(layer, 2 * HIDDEN), rows)


@kind()
def lstm_with_projection(rows: int) -> Case:
    return series(last_of(nn.LSTM(INPUTS, HIDDEN, proj_size=4, batch_first=True), 4), rows)


@kind()
def lstm_time_first(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        _, (state, _) = m.layer(x.transpose(0, 1))
        return m.head(state[-1])

    return series(Net(run, layer=nn.LSTM(INPUTS, HIDDEN), head=nn.Linear(HIDDEN, CLASSES)), rows)


@kind()
def gru_with_learned_start(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        return m.head(m.layer(x, m.start.expand(-1, len(x), -1).contiguous())[1][-1])

    model = Net(run, layer=nn.GRU(INPUTS, HIDDEN, batch_first=True), start=weights(1, 1, HIDDEN), head=nn.Linear(8, 3))
    return series(model, rows)


@kind()
def lstm_cells(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        state = torch.zeros(len(x), HIDDEN), torch.zeros(len(x), HIDDEN)
        for step in x.unbind(1):
            state = m.cell(step, state)
        return m.head(state[0])

    return series(Net(run, cell=nn.LSTMCell(INPUTS, HIDDEN), head=nn.Linear(HIDDEN, CLASSES)), rows)


@kind()
def gru_cells(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        state = x.new_zeros(len(x), HIDDEN)
        outputs = []
        for step in range(x.size(1)):
            state = m.norm(m.cell(x[:, step], state))
            outputs.append(state)
        return m.head(torch.stack(outputs, dim=1).mean(dim=1))

    return series(Net(run, cell=nn.GRUCell(INPUTS, HIDDEN), norm=nn.LayerNorm(HIDDEN), head=nn.Linear(HIDDEN, 3)), rows)


@kind()
def packed_sequences(rows: int) -> Case:
    def run(m: Any, words: Tensor, lengths: Tensor) -> Any:
        packed = pack_padded_sequence(m.table(words), lengths.clamp(1), batch_first=True, enforce_sorted=False)
        _, (state, _) = m.layer(packed)
        return m.head(state[-1])

    model = Net(
        run, table=nn.Embedding(20, INPUTS), layer=nn.LSTM(INPUTS, HIDDEN, batch_first=True), head=nn.Linear(8, 3)
    )
    return Case(model, (torch.randint(20, (rows, STEPS)), torch.randint(1, STEPS + 1, (rows,))), classes(rows))


@kind()
def packed_and_padded_again(rows: int) -> Case:
    def run(m: Any, x: Tensor, lengths: Tensor) -> Any:
        packed = pack_padded_sequence(x, lengths.clamp(1), batch_first=True, enforce_sorted=False)
        outputs, _ = pad_packed_sequence(m.layer(packed)[0], batch_first=True, total_length=STEPS)
        return m.head(outputs.sum(dim=1) / lengths.clamp(1).unsqueeze(-1))

    model = Net(run, layer=nn.GRU(INPUTS, HIDDEN, batch_first=True, bidirectional=True), head=nn.Linear(2 * HIDDEN, 3))
    return Case(model, (torch.randn(rows, STEPS, INPUTS), torch.randint(1, STEPS + 1, (rows,))), classes(rows))


@kind()
def states_at_the_length(rows: int) -> Case:
    """The output at the last token of each sequence, by indexing."""

    def run(m: Any, x: Tensor, lengths: Tensor) -> Any:
        outputs, _ = m.layer(x)
        return m.head(outputs[torch.arange(len(x)), lengths - 1])

    model = Net(run, layer=nn.LSTM(INPUTS, HIDDEN, batch_first=True), head=nn.Linear(HIDDEN, CLASSES))
    return Case(model, (torch.randn(rows, STEPS, INPUTS), torch.randint(1, STEPS + 1, (rows,))), classes(rows))


@kind()
def written_lstm(rows: int) -> Case:
    """An LSTM with normalization of its gates, written out."""

    def run(m: Any, x: Tensor) -> Any:
        hidden = cell = x.new_zeros(len(x), HIDDEN)
        for step in x.unbind(1):
            gates = m.norm(m.of_input(step) + m.of_hidden(hidden))
            inward, forget, change, outward = gates.chunk(4, dim=1)
            cell = torch.sigmoid(forget) * cell + torch.sigmoid(inward) * torch.tanh(change)
            hidden = torch.sigmoid(outward) * torch.tanh(cell)
        return m.head(hidden)

    model = Net(run, of_input=nn.Linear(INPUTS, 32), of_hidden=nn.Linear(HIDDEN, 32, bias=False), norm=nn.LayerNorm(32),
                head=nn.Linear(HIDDEN, CLASSES))  # fmt: skip
    return series(model, rows)


@kind()
def quasi_recurrence(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        change, forget, out = m.gates(F.pad(x.transpose(1, 2), (1, 0))).chunk(3, dim=1)
        state = torch.zeros_like(change[..., 0])
        for step in range(x.shape[1]):
            opened = torch.sigmoid(forget[..., step])
            state = opened * state + (1 - opened) * torch.tanh(change[..., step])
        return m.head(torch.sigmoid(out[..., -1]) * state)

    return series(Net(run, gates=nn.Conv1d(INPUTS, 3 * HIDDEN, 2), head=nn.Linear(HIDDEN, CLASSES)), rows)


@kind()
def simple_recurrent_unit(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        values, forget, reset, skip = m.project(x).chunk(4, dim=-1)
        state, outputs = torch.zeros_like(values[:, 0]), []
        for step in range(x.shape[1]):
            opened = torch.sigmoid(forget[:, step] + m.of_forget * state)
            used = torch.sigmoid(reset[:, step] + m.of_reset * state)
            state = opened * state + (1 - opened) * values[:, step]
            outputs.append(used * state + (1 - used) * skip[:, step])
        return m.head(torch.stack(outputs).amax(dim=0))

    model = Net(run, project=nn.Linear(INPUTS, 32), of_forget=weights(8), of_reset=weights(8), head=nn.Linear(8, 3))
    return series(model, rows)


@kind()
def minimal_gru(rows: int) -> Case:
    """minGRU in parallel, by sums of logarithms."""

    def run(m: Any, x: Tensor) -> Any:
        gate, change = m.gate(x), m.change(x)
        log_kept = -F.softplus(gate)
        log_new = -F.softplus(-gate) + torch.where(change >= 0, (F.relu(change) + 0.5).log(), -F.softplus(-change))
        passed = log_kept.cumsum(dim=1)
        return m.head((passed + (log_new - passed).logcumsumexp(dim=1)).exp()[:, -1])

    parts = {"gate": nn.Linear(INPUTS, HIDDEN), "change": nn.Linear(INPUTS, HIDDEN)}
    return series(Net(run, **parts, head=nn.Linear(HIDDEN, CLASSES)), rows)


@kind()
def convolutional_lstm(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        hidden = cell = torch.zeros(len(x), 4, 6, 6)
        for frame in x.unbind(1):
            inward, forget, change, out = m.gates(torch.cat([frame, hidden], dim=1)).chunk(4, dim=1)
            cell = forget.sigmoid() * cell + inward.sigmoid() * change.tanh()
            hidden = out.sigmoid() * cell.tanh()
        return m.head(hidden.flatten(1))

    return vectors(Net(run, gates=nn.Conv2d(6, 16, 3, padding=1), head=nn.Linear(144, CLASSES)), rows, 4, 2, 6, 6)


@kind()
def selective_scan(rows: int) -> Case:
    """Mamba, with its scan as a loop."""

    def run(m: Any, x: Tensor) -> Any:
        hidden, gate = m.widen(m.norm(m.first(x))).chunk(2, dim=-1)
        hidden = F.silu(m.local(hidden.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        step, inward, outward = m.of_step(hidden).split([2, 4, 4], dim=-1)
        step = F.softplus(m.widen_step(step)).unsqueeze(-1)
        decay, change = torch.exp(-step * m.log_decay.exp()), step * inward.unsqueeze(2) * hidden.unsqueeze(-1)
        state, outputs = torch.zeros_like(change[:, 0]), []
        for place in range(x.shape[1]):
            state = decay[:, place] * state + change[:, place]
            outputs.append(torch.einsum("bdn,bn->bd", state, outward[:, place]))
        return m.head((torch.stack(outputs, dim=1) + m.skip * hidden) * F.silu(gate)).mean(dim=1)

    model = Net(
        run, first=nn.Linear(INPUTS, 8), norm=nn.RMSNorm(8), widen=nn.Linear(8, 32, bias=False),
        local=nn.Conv1d(16, 16, 3, padding=2, groups=16), of_step=nn.Linear(16, 10, bias=False),
        widen_step=nn.Linear(2, 16), log_decay=nn.Parameter(torch.arange(1.0, 5).log().repeat(16, 1)),
        skip=nn.Parameter(torch.ones(16)), head=nn.Linear(16, CLASSES),
    )  # fmt: skip
    return series(model, rows)


@kind()
def diagonal_state_space(rows: int) -> Case:
    """S4D: a convolution by FFT with a kernel from complex poles."""

    def run(m: Any, x: Tensor) -> Any:
        x = m.first(x).transpose(1, 2)
        pole = torch.complex(-m.log_real.exp(), m.imaginary)
        step = m.log_step.exp().unsqueeze(-1)
        scale = torch.view_as_complex(m.out) * (torch.exp(pole * step) - 1) / pole
        kernel = (
            2 * (scale.unsqueeze(-1) * torch.exp((pole * step).unsqueeze(-1) * torch.arange(STEPS))).sum(dim=1).real
        )
        spectrum = torch.fft.rfft(x, n=2 * STEPS) * torch.fft.rfft(kernel, n=2 * STEPS)
        x = torch.fft.irfft(spectrum, n=2 * STEPS)[..., :STEPS] + m.skip.unsqueeze(-1) * x
        return m.head(F.gelu(x).mean(dim=-1))

    model = Net(
        run, first=nn.Linear(INPUTS, 6), log_real=weights(6, 4), imaginary=weights(6, 4, scale=3.0),
        log_step=weights(6), out=weights(6, 4, 2), skip=weights(6), head=nn.Linear(6, CLASSES),
    )  # fmt: skip
    return series(model, rows)


@kind()
def weighted_key_values(rows: int) -> Case:
    """RWKV: shifted tokens and an exponential average of values."""

    def run(m: Any, x: Tensor) -> Any:
        x = m.norm(m.table(x))
        before = F.pad(x, (0, 0, 1, -1))
        key, value, gate = (
            layer(x * mix + before * (1 - mix)) for layer, mix in zip(m.layers, m.mix.sigmoid(), strict=True)
        )
        decay = -m.decay.exp()
        top, low, most, outputs = torch.zeros_like(key[:, 0]), torch.zeros_like(key[:, 0]), key[:, 0] - 9.0, []
        for place in range(x.shape[1]):
            now = torch.maximum(most, m.bonus + key[:, place])
            old, new = torch.exp(most - now), torch.exp(m.bonus + key[:, place] - now)
            outputs.append((old * top + new * value[:, place]) / (old * low + new))
            now = torch.maximum(most + decay, key[:, place])
            old, new = torch.exp(most + decay - now), torch.exp(key[:, place] - now)
            top, low, most = old * top + new * value[:, place], old * low + new, now
        return m.head(torch.sigmoid(gate) * torch.stack(outputs, dim=1)).mean(dim=1)

    model = Net(
        run, table=nn.Embedding(20, 8), norm=nn.LayerNorm(8), mix=weights(3, 8), decay=weights(8), bonus=weights(8),
        layers=nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(3)), head=nn.Linear(8, CLASSES),
    )  # fmt: skip
    return tokens(model, rows, STEPS, 20)


@kind()
def retention(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        query, key, value = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in m.project(x).chunk(3, dim=-1))
        apart = torch.arange(STEPS).unsqueeze(-1) - torch.arange(STEPS)
        decay = torch.where(apart >= 0, m.decay.sigmoid() ** apart.clamp(min=0), 0.0)
        mixed = (query @ key.transpose(-1, -2) * decay) @ value
        return m.head(m.norm(mixed.transpose(1, 2).flatten(2).transpose(1, 2)).mean(dim=-1))

    model = Net(
        run, project=nn.Linear(INPUTS, 24), decay=weights(2, 1, 1), norm=nn.GroupNorm(2, 8), head=nn.Linear(8, 3)
    )
    return series(model, rows)


@kind()
def long_convolution(rows: int) -> Case:
    """Hyena: a kernel made by a network of the place, gated by the input."""

    def run(m: Any, x: Tensor) -> Any:
        value, gate = m.project(x).transpose(1, 2).chunk(2, dim=1)
        place = torch.linspace(0, 1, STEPS).unsqueeze(-1)
        kernel = m.filter(torch.cat([place, torch.sin(6 * place)], dim=-1)).t() * torch.exp(-place.squeeze(-1))
        spectrum = torch.fft.rfft(value, n=2 * STEPS) * torch.fft.rfft(kernel, n=2 * STEPS)
        return m.head((gate * torch.fft.irfft(spectrum, n=2 * STEPS)[..., :STEPS]).sum(dim=-1))

    model = Net(run, project=nn.Linear(INPUTS, 16), filter=mlp(2, 8, 8, activation=nn.Tanh), head=nn.Linear(8, CLASSES))
    return series(model, rows)


@kind()
def translation_with_attention(rows: int) -> Case:
    """An encoder and a decoder of cells with additive attention."""

    def run(m: Any, source: Tensor, target: Tensor) -> Any:
        memory, state = m.encoder(m.words(source))
        keys, hidden, outputs = m.of_memory(memory), state[0], []
        for word in m.other_words(target).unbind(1):
            scores = m.score(torch.tanh(keys + m.of_state(hidden).unsqueeze(1)))
            context = (scores.softmax(dim=1) * memory).sum(dim=1)
            hidden = m.decoder(torch.cat([word, context], dim=-1), hidden)
            outputs.append(m.head(hidden))
        return torch.stack(outputs, dim=2)

    model = Net(
        run, words=nn.Embedding(20, 6), other_words=nn.Embedding(15, 6), encoder=nn.GRU(6, 8, batch_first=True),
        of_memory=nn.Linear(8, 8), of_state=nn.Linear(8, 8, bias=False), score=nn.Linear(8, 1, bias=False),
        decoder=nn.GRUCell(14, 8), head=nn.Linear(8, 15),
    )  # fmt: skip
    inputs = torch.randint(20, (rows, STEPS)), torch.randint(15, (rows, 5))
    return Case(model, inputs, torch.randint(15, (rows, 5)))


@kind()
def pointer_network(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        memory, (hidden, cell) = m.encoder(x)
        hidden, cell, step, outputs = hidden[0], cell[0], torch.zeros_like(x[:, 0]), []
        for _ in range(3):
            hidden, cell = m.decoder(step, (hidden, cell))
            scores = torch.tanh(m.of_memory(memory) + m.of_state(hidden).unsqueeze(1)) @ m.vector
            outputs.append(scores)
            step = (scores.softmax(dim=-1).unsqueeze(-1) * x).sum(dim=1)
        return torch.stack(outputs, dim=2)

    model = Net(
        run, encoder=nn.LSTM(INPUTS, 8, batch_first=True), decoder=nn.LSTMCell(INPUTS, 8), of_memory=nn.Linear(8, 8),
        of_state=nn.Linear(8, 8), vector=weights(8),
    )  # fmt: skip
    return Case(model, (torch.randn(rows, STEPS, INPUTS),), torch.randint(STEPS, (rows, 3)))


@kind()
def conditional_random_field(rows: int) -> Case:
    """A tagger whose loss sums over all paths."""

    def run(m: Any, words: Tensor) -> Any:
        return m.emit(m.layer(m.table(words))[0]), m.transitions.expand(len(words), -1, -1)

    def loss(outputs: Any, target: Tensor) -> Any:
        emitted, transitions = outputs
        paths = emitted[:, 0]
        path = emitted[:, 0].gather(1, target[:, :1]).squeeze(1)
        for place in range(1, STEPS):
            paths = (paths.unsqueeze(2) + transitions).logsumexp(dim=1) + emitted[:, place]
            pair = target[:, place - 1] * CLASSES + target[:, place]
            path = path + transitions.flatten(1).gather(1, pair.unsqueeze(1)).squeeze(1)
            path = path + emitted[:, place].gather(1, target[:, place].unsqueeze(1)).squeeze(1)
        return (paths.logsumexp(dim=1) - path).sum()

    model = Net(run, table=nn.Embedding(20, 6), layer=nn.LSTM(6, 4, batch_first=True, bidirectional=True),
                emit=nn.Linear(8, CLASSES), transitions=weights(CLASSES, CLASSES))  # fmt: skip
    return Case(model, (torch.randint(20, (rows, STEPS)),), torch.randint(CLASSES, (rows, STEPS)), loss)


@kind()
def tree_of_cells(rows: int) -> Case:
    """A complete binary tree, from its leaves to the root."""

    def run(m: Any, x: Tensor) -> Any:
        nodes = m.leaf(x)
        while nodes.shape[1] > 1:
            gates = m.join(nodes.reshape(len(x), -1, 16))
            left, right, new = gates.chunk(3, dim=-1)
            nodes = left.sigmoid() * nodes[:, ::2] + right.sigmoid() * nodes[:, 1::2] + new.tanh()
        return m.head(nodes[:, 0])

    return vectors(Net(run, leaf=nn.Linear(INPUTS, 8), join=nn.Linear(16, 24), head=nn.Linear(8, 3)), rows, 8, INPUTS)


@kind()
def external_memory(rows: int) -> Case:
    """A controller that reads and writes a memory by content, as in neural Turing machines."""

    def run(m: Any, x: Tensor) -> Any:
        memory, state, read = m.memory.expand(len(x), -1, -1), x.new_zeros(len(x), 8), x.new_zeros(len(x), 4)
        for step in x.unbind(1):
            state = m.controller(torch.cat([step, read], dim=-1), state)
            key, erase, add = m.heads(state).split(4, dim=-1)
            weight = (5 * F.cosine_similarity(memory, key.unsqueeze(1), dim=-1)).softmax(dim=-1).unsqueeze(-1)
            read = (weight * memory).sum(dim=1)
            memory = memory * (1 - weight * erase.sigmoid().unsqueeze(1)) + weight * add.unsqueeze(1)
        return m.head(torch.cat([state, read], dim=-1))

    model = Net(run, memory=weights(6, 4, scale=1.0), controller=nn.GRUCell(INPUTS + 4, 8), heads=nn.Linear(8, 12),
                head=nn.Linear(12, CLASSES))  # fmt: skip
    return series(model, rows)
