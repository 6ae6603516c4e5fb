"""Graphs, sets, sequences of ids in bags, and recommenders."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.architecture_models.dense import mlp
from bench.architecture_models.kinds import CLASSES, Case, Net, classes, kind, numbers, weights

NODES, EDGES, INPUTS = 7, 12, 5


def dense_graphs(model: nn.Module, rows: int) -> Case:
    """Graphs with a dense adjacency matrix."""
    adjacency = (torch.rand(rows, NODES, NODES) < 0.4).float() + torch.eye(NODES)
    return Case(model, (torch.randn(rows, NODES, INPUTS), adjacency.clamp(max=1)), classes(rows))


def edge_graphs(model: nn.Module, rows: int) -> Case:
    """Graphs with lists of edges."""
    return Case(model, (torch.randn(rows, NODES, INPUTS), torch.randint(NODES, (rows, 2, EDGES))), classes(rows))


@kind()
def graph_convolution(rows: int) -> Case:
    def run(m: Any, x: Tensor, adjacency: Tensor) -> Any:
        scale = adjacency.sum(dim=-1).rsqrt()
        normed = scale.unsqueeze(-1) * adjacency * scale.unsqueeze(-2)
        for layer in m.layers:
            x = F.relu(normed @ layer(x))
        return m.head(x.mean(dim=1))

    layers = nn.ModuleList([nn.Linear(INPUTS, 8), nn.Linear(8, 8)])
    return dense_graphs(Net(run, layers=layers, head=nn.Linear(8, CLASSES)), rows)


@kind()
def graph_attention(rows: int) -> Case:
    def run(m: Any, x: Tensor, adjacency: Tensor) -> Any:
        hidden = m.project(x)
        scores = F.leaky_relu((hidden @ m.source).unsqueeze(-1) + (hidden @ m.target).unsqueeze(-2), 0.2)
        scores = scores.masked_fill(adjacency == 0, float("-inf"))
        return m.head(F.elu(scores.softmax(dim=-1) @ hidden).amax(dim=1))

    model = Net(
        run, project=nn.Linear(INPUTS, 8, bias=False), source=weights(8), target=weights(8), head=nn.Linear(8, 3)
    )
    return dense_graphs(model, rows)


@kind()
def message_passing_by_index_add(rows: int) -> Case:
    def run(m: Any, x: Tensor, edges: Tensor) -> Any:
        outputs = []
        for nodes, (source, target) in zip(x, edges, strict=True):
            messages = m.message(torch.cat([nodes[source], nodes[target]], dim=-1))
            gathered = torch.zeros(NODES, 8).index_add(0, target, messages)
            outputs.append(m.update(torch.cat([nodes, gathered], dim=-1)).sum(dim=0))
        return m.head(torch.stack(outputs))

    model = Net(run, message=mlp(2 * INPUTS, 8, 8), update=mlp(INPUTS + 8, 8), head=nn.Linear(8, CLASSES))
    return edge_graphs(model, rows)


@kind()
def message_passing_in_one_graph(rows: int) -> Case:
    """The graphs of a batch are joined into one, with shifted node numbers and scatter_add, as in graph libraries."""

    def run(m: Any, x: Tensor, edges: Tensor) -> Any:
        batch, nodes = x.shape[:2]
        shifted = edges + nodes * torch.arange(batch).view(-1, 1, 1)
        source, target = shifted.transpose(0, 1).reshape(2, -1)
        flat = x.reshape(batch * nodes, -1)
        for layer in m.layers:
            messages = layer(flat)[source]
            gathered = torch.zeros(batch * nodes, 8).scatter_add(0, target.unsqueeze(-1).expand(-1, 8), messages)
            flat = F.relu(gathered)
        owner = torch.arange(batch).repeat_interleave(nodes)
        return m.head(torch.zeros(batch, 8).index_add(0, owner, flat))

    model = Net(run, layers=nn.ModuleList([nn.Linear(INPUTS, 8), nn.Linear(8, 8)]), head=nn.Linear(8, CLASSES))
    return edge_graphs(model, rows)


@kind()
def message_passing_by_scatter_reduce(rows: int) -> Case:
    def run(m: Any, x: Tensor, edges: Tensor) -> Any:
        index = edges[:, 1].unsqueeze(-1).expand(-1, -1, 8)
        messages = m.message(x.gather(1, edges[:, 0].unsqueeze(-1).expand(-1, -1, INPUTS)))
        start = torch.zeros(len(x), NODES, 8)
        gathered = start.scatter_reduce(1, index, messages, reduce="amax", include_self=False)
        return m.head(gathered.mean(dim=1))

    return edge_graphs(Net(run, message=mlp(INPUTS, 8, 8), head=nn.Linear(8, CLASSES)), rows)


@kind()
def sparse_graph(rows: int) -> Case:
    """The product with a sparse matrix that is built from the edges."""

    def run(m: Any, x: Tensor, edges: Tensor) -> Any:
        outputs = []
        for nodes, pairs in zip(x, edges, strict=True):
            matrix = torch.sparse_coo_tensor(pairs, torch.ones(pairs.shape[1]), (NODES, NODES), check_invariants=False)
            outputs.append(torch.sparse.mm(matrix, m.layer(nodes)).sum(dim=0))
        return m.head(F.relu(torch.stack(outputs)))

    return edge_graphs(Net(run, layer=nn.Linear(INPUTS, 8), head=nn.Linear(8, CLASSES)), rows)


@kind()
def constant_sparse_graph(rows: int) -> Case:
    """One public graph for all examples, as a sparse buffer."""

    def run(m: Any, x: Tensor) -> Any:
        outputs = [torch.sparse.mm(m.graph, m.layer(nodes)) for nodes in x]
        return m.head(F.relu(torch.stack(outputs)).mean(dim=1))

    graph = (torch.rand(NODES, NODES) < 0.4).float().to_sparse()
    model = Net(run, graph=graph, layer=nn.Linear(INPUTS, 8), head=nn.Linear(8, CLASSES))
    return Case(model, (torch.randn(rows, NODES, INPUTS),), classes(rows))


@kind()
def edge_convolution(rows: int) -> Case:
    """Neighbors are chosen by distance, as in DGCNN."""

    def run(m: Any, x: Tensor) -> Any:
        nearest = torch.cdist(x, x).topk(4, dim=-1, largest=False).indices
        index = nearest.flatten(1).unsqueeze(-1).expand(-1, -1, x.shape[-1])
        neighbours = x.gather(1, index).unflatten(1, (-1, 4))
        centre = x.unsqueeze(2).expand_as(neighbours)
        return m.head(m.edge(torch.cat([centre, neighbours - centre], dim=-1)).amax(dim=2).amax(dim=1))

    model = Net(run, edge=mlp(6, 16, 16), head=nn.Linear(16, CLASSES))
    return Case(model, (torch.randn(rows, 10, 3),), classes(rows))


@kind()
def equivariant_graph(rows: int) -> Case:
    """E(n)-equivariant messages from squared distances."""

    def run(m: Any, features: Tensor, places: Tensor) -> Any:
        apart = places.unsqueeze(2) - places.unsqueeze(1)
        pairs = [x.expand(-1, NODES, NODES, -1) for x in (features.unsqueeze(2), features.unsqueeze(1))]
        messages = m.edge(torch.cat([*pairs, apart.square().sum(dim=-1, keepdim=True)], dim=-1))
        places = places + (apart * m.move(messages)).mean(dim=2)
        return (
            m.node(torch.cat([features, messages.sum(dim=2)], dim=-1)).sum(dim=1)
            + places.square().mean((1, 2))[:, None]
        )

    model = Net(
        run, edge=mlp(2 * INPUTS + 1, 16, 8, activation=nn.SiLU), move=nn.Linear(8, 1), node=mlp(INPUTS + 8, 8, 3)
    )
    return Case(model, (torch.randn(rows, NODES, INPUTS), torch.randn(rows, NODES, 3)), classes(rows))


@kind()
def schnet(rows: int) -> Case:
    def run(m: Any, kinds: Tensor, places: Tensor) -> Any:
        x, apart = m.atoms(kinds), (places.unsqueeze(2) - places.unsqueeze(1)).square().sum(-1).add(1e-6).sqrt()
        filters = m.filter(torch.exp(-4 * (apart.unsqueeze(-1) - m.grid).square()))
        x = x + m.update((m.project(x).unsqueeze(1) * filters).sum(dim=2))
        return m.head(x).sum(dim=1)

    model = Net(run, atoms=nn.Embedding(6, 8), grid=torch.linspace(0, 3, 10), filter=mlp(10, 8, 8),
                project=nn.Linear(8, 8), update=mlp(8, 8, 8), head=nn.Linear(8, 1))  # fmt: skip
    return numbers(model, (torch.randint(6, (rows, NODES)), torch.randn(rows, NODES, 3)), 1)


@kind()
def bag_sum(rows: int) -> Case:
    model = Net(lambda m, x: m.head(m.bag(x)), bag=nn.EmbeddingBag(30, 8, mode="sum"), head=nn.Linear(8, CLASSES))
    return Case(model, (torch.randint(30, (rows, 6)),), classes(rows))


@kind()
def bag_mean_with_offsets(rows: int) -> Case:
    """The bags of a batch as one list of ids, with the place where each begins."""

    def run(m: Any, ids: Tensor) -> Any:
        return m.head(m.bag(ids.flatten(), torch.arange(0, ids.numel(), 3)).view(len(ids), -1))

    model = Net(run, bag=nn.EmbeddingBag(30, 8, mode="mean"), head=nn.Linear(16, CLASSES))
    return Case(model, (torch.randint(30, (rows, 6)),), classes(rows))


@kind()
def bag_with_weights(rows: int) -> Case:
    def run(m: Any, ids: Tensor, amounts: Tensor) -> Any:
        return m.head(m.bag(ids, per_sample_weights=amounts))

    model = Net(run, bag=nn.EmbeddingBag(30, 8, mode="sum", padding_idx=0), head=nn.Linear(8, CLASSES))
    return Case(model, (torch.randint(30, (rows, 6)), torch.rand(rows, 6)), classes(rows))


@kind()
def bag_max(rows: int) -> Case:
    model = Net(lambda m, x: m.head(m.bag(x)), bag=nn.EmbeddingBag(30, 8, mode="max"), head=nn.Linear(8, CLASSES))
    return Case(model, (torch.randint(30, (rows, 6)),), classes(rows))


@kind()
def dlrm(rows: int) -> Case:
    def run(m: Any, dense: Tensor, ids: Tensor) -> Any:
        bottom = m.bottom(dense)
        each = torch.stack([bottom, *(table(ids[:, place]) for place, table in enumerate(m.tables))], dim=1)
        first, second = torch.tril_indices(4, 4, offset=-1)
        return m.top(torch.cat([bottom, (each @ each.transpose(1, 2))[:, first, second]], dim=-1)).squeeze(-1)

    tables = nn.ModuleList(nn.EmbeddingBag(number, 8, mode="sum") for number in (20, 30, 40))
    model = Net(run, bottom=mlp(4, 16, 8), tables=tables, top=mlp(14, 16, 1))
    ids = torch.stack([torch.randint(number, (rows, 2)) for number in (20, 30, 40)], dim=1)
    return Case(model, (torch.randn(rows, 4), ids), torch.rand(rows).round(), F.binary_cross_entropy_with_logits)


@kind()
def factorization_machine(rows: int) -> Case:
    def run(m: Any, ids: Tensor) -> Any:
        vectors = m.factors(ids)
        pairs = (vectors.sum(dim=1).square() - vectors.square().sum(dim=1)).sum(dim=-1) / 2
        return m.bias + m.linear(ids).sum(dim=(1, 2)) + pairs

    model = Net(run, factors=nn.Embedding(40, 6), linear=nn.Embedding(40, 1), bias=weights(1))
    return numbers(model, (torch.randint(40, (rows, 5)),))


@kind()
def two_towers(rows: int) -> Case:
    def run(m: Any, user: Tensor, items: Tensor) -> Any:
        one = F.normalize(m.user_tower(m.users(user)), dim=-1)
        many = F.normalize(m.item_tower(m.items(items)), dim=-1)
        return torch.einsum("bd,bkd->bk", one, many) / 0.1

    model = Net(run, users=nn.Embedding(50, 8), items=nn.Embedding(60, 8), user_tower=mlp(8, 16, 8),
                item_tower=mlp(8, 16, 8))  # fmt: skip
    return Case(model, (torch.randint(50, (rows,)), torch.randint(60, (rows, CLASSES))), classes(rows))


@kind()
def wide_and_deep(rows: int) -> Case:
    def run(m: Any, ids: Tensor, dense: Tensor) -> Any:
        crossed = (ids[:, 0] * 10 + ids[:, 1]) % 64
        return m.wide(crossed) + m.deep(torch.cat([m.table(ids).flatten(1), dense], dim=-1))

    model = Net(run, wide=nn.Embedding(64, CLASSES), table=nn.Embedding(10, 4), deep=mlp(12, 16, CLASSES))
    return Case(model, (torch.randint(10, (rows, 2)), torch.randn(rows, 4)), classes(rows))


@kind()
def cross_network(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        start = x
        for layer in m.layers:
            x = start * layer(x) + x
        return m.head(x)

    model = Net(run, layers=nn.ModuleList(nn.Linear(6, 6) for _ in range(3)), head=nn.Linear(6, CLASSES))
    return Case(model, (torch.randn(rows, 6),), classes(rows))


@kind()
def attention_over_history(rows: int) -> Case:
    """Items of a user's past are weighted by the candidate, as in deep interest networks."""

    def run(m: Any, past: Tensor, candidate: Tensor) -> Any:
        history, item = m.items(past), m.items(candidate).unsqueeze(1)
        pairs = torch.cat([history, item.expand_as(history), history * item], dim=-1)
        weight = m.weight(pairs).masked_fill((past == 0).unsqueeze(-1), 0.0)
        return m.head(torch.cat([(weight * history).sum(dim=1), item.squeeze(1)], dim=-1))

    model = Net(
        run, items=nn.Embedding(40, 6, padding_idx=0), weight=mlp(18, 8, 1, activation=nn.PReLU), head=mlp(12, 3)
    )
    return Case(model, (torch.randint(40, (rows, 7)), torch.randint(1, 40, (rows,))), classes(rows))


@kind()
def one_hot_inputs(rows: int) -> Case:
    model = Net(lambda m, x: m.head(F.relu(m.first(F.one_hot(x, 20).float().sum(dim=1)))), first=nn.Linear(20, 8),
                head=nn.Linear(8, CLASSES))  # fmt: skip
    return Case(model, (torch.randint(20, (rows, 4)),), classes(rows))
