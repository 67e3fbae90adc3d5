"""The layers and models of torch_geometric 2.8 that need no compiled extension, each with the inputs of its forward.

A graph has 2,000 nodes of 64 features and 10,000 edges between random nodes; where there are several graphs, they have
50 nodes each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.nn.models.tgn import IdentityMessage, LastAggregator

# Left out: CuGraph*Conv (cugraph), FusedGATConv (dgNN), Node2Vec (pyg_lib), GravNetConv, DynamicEdgeConv, XConv and
# knn_interpolate (knn of pyg_lib or torch_cluster), DimeNet, DimeNetPlusPlus, GNNFF and ViSNet (radius_graph of the
# same), SplineConv, PANConv, PANPooling and LPFormer (torch_sparse); GPSE and RENet (inputs are Data objects).

_NODES, _EDGES, _WIDTH, _EDGE_WIDTH = 2_000, 10_000, 64, 16
_GRAPH_NODES, _RELATIONS, _CLASSES, _HEADS = 50, 4, 10, 4
_GRAPHS = _NODES // _GRAPH_NODES

Entry = tuple[Callable[[], nn.Module], Callable[[], Any]]


# -- inputs ------------------------------------------------------------------------------------------------------------


def _x(nodes: int = _NODES, width: int = _WIDTH) -> Tensor:
    return torch.randn(nodes, width)


def _edges(count: int = _EDGES) -> Tensor:
    return torch.randint(_NODES, (2, count))


def _weight() -> Tensor:
    return torch.rand(_EDGES)


def _edge_attr(width: int = _EDGE_WIDTH) -> Tensor:
    return torch.rand(_EDGES, width)


def _edge_type() -> Tensor:
    return torch.randint(_RELATIONS, (_EDGES,))


def _batch() -> Tensor:
    """The graph of each node."""
    return torch.arange(_NODES) // _GRAPH_NODES


def _graph() -> tuple[Tensor, ...]:
    return _x(), _edges()


def _weighted() -> tuple[Tensor, ...]:
    return _x(), _edges(), _weight()


def _attributed() -> tuple[Tensor, ...]:
    return _x(), _edges(), _edge_attr()


def _typed() -> tuple[Tensor, ...]:
    return _x(), _edges(), _edge_type()


def _points() -> tuple[Tensor, ...]:
    return _x(), torch.rand(_NODES, 3), _edges()


def _graphs() -> tuple[Tensor, ...]:
    """Several graphs: features, edges, graph of each node."""
    return _x(), _edges_within(), _batch()


def _sorted_edges() -> Tensor:
    """Edges in the order of their targets."""
    source, target = _edges()
    return torch.stack([source, target.sort().values])


def _edges_within() -> Tensor:
    """Edges between nodes of the same graph."""
    graph = torch.randint(_GRAPHS, (1, _EDGES))
    return graph * _GRAPH_NODES + torch.randint(_GRAPH_NODES, (2, _EDGES))


def _grouped() -> tuple[Tensor, ...]:
    return _x(), _batch()


def _dense() -> tuple[Tensor, ...]:
    """Features and adjacency of 8 graphs of 50 nodes."""
    return torch.randn(8, _GRAPH_NODES, _WIDTH), torch.randint(2, (8, _GRAPH_NODES, _GRAPH_NODES)).float()


def _typed_graph() -> tuple[dict[str, Tensor], dict[tuple[str, str, str], Tensor]]:
    """Papers and authors, and the edges between them."""
    return {kind: _x() for kind in _METADATA[0]}, {relation: _edges() for relation in _METADATA[1]}


def _molecule() -> tuple[Tensor, ...]:
    """Atomic numbers, positions, and the molecule of each atom."""
    return torch.randint(1, 10, (_NODES,)), 5 * torch.rand(_NODES, 3), _batch()


def _triples() -> tuple[Tensor, ...]:
    """Head, relation and tail of 1,024 facts."""
    return torch.randint(_NODES, (1024,)), torch.randint(_RELATIONS, (1024,)), torch.randint(_NODES, (1024,))


# -- parts -------------------------------------------------------------------------------------------------------------

_METADATA = (
    ["author", "paper"],
    [("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "written_by", "author")],
)


def _mlp(*widths: int) -> nn.Module:
    """Two linear layers with a ReLU between them."""
    first, hidden, last = widths if len(widths) == 3 else (widths[0], _WIDTH, widths[-1])
    return nn.Sequential(nn.Linear(first, hidden), nn.ReLU(), nn.Linear(hidden, last))


def _square() -> nn.Module:
    return _mlp(_WIDTH, _WIDTH)


def _degrees() -> Tensor:
    """How many nodes have each number of neighbours, as in a training set."""
    return torch.bincount(torch.arange(_NODES, device="cpu") % 12)


_PNA = {"aggregators": ["mean", "min", "max", "std"], "scalers": ["identity", "amplification", "attenuation"]}


class _Call(nn.Module):
    """A function of torch_geometric.nn as a module."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        super().__init__()
        self._function, self._options = function, options

    def forward(self, *inputs: Any) -> Any:
        return self._function(*inputs, **self._options)


class _Method(nn.Module):
    """Another method of a module as its forward."""

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__()
        self.module, self._name = module, name

    def forward(self, *inputs: Any) -> Any:
        return getattr(self.module, self._name)(*inputs)


class _Variational(nn.Module):
    """Mean and log of the deviation of each node."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.log_deviation = pyg.GCNConv(_WIDTH, 32), pyg.GCNConv(_WIDTH, 32)

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        return self.mean(x, edge_index), self.log_deviation(x, edge_index)


class _EdgeModel(nn.Module):
    """The edges of a MetaLayer."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = _mlp(2 * _WIDTH + _EDGE_WIDTH, _EDGE_WIDTH)

    def forward(self, src: Tensor, dst: Tensor, edge_attr: Tensor, u: Tensor, batch: Tensor) -> Tensor:
        return self.mlp(torch.cat([src, dst, edge_attr], 1))


class _NodeModel(nn.Module):
    """The nodes of a MetaLayer."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = _mlp(_WIDTH + _EDGE_WIDTH, _WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, u: Tensor, batch: Tensor) -> Tensor:
        from torch_geometric.utils import scatter

        return self.mlp(torch.cat([x, scatter(edge_attr, edge_index[1], dim_size=x.size(0), reduce="mean")], 1))


class _DeepGCN(nn.Module):
    """Four residual layers, as in the DeeperGCN example."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            pyg.DeepGCNLayer(pyg.GENConv(_WIDTH, _WIDTH), nn.LayerNorm(_WIDTH), nn.ReLU(), block="res+", dropout=0.1)
            for _ in range(4)
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, edge_index)
        return x


def _schnet_edges(pos: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
    """Each atom and the next 16 in place of radius_graph."""
    atoms = torch.arange(pos.size(0)).repeat_interleave(16)
    others = (atoms + torch.arange(1, 17).repeat(pos.size(0))) % pos.size(0)
    return torch.stack([others, atoms]), (pos[atoms] - pos[others]).norm(dim=-1)


def _metapath() -> nn.Module:
    """The embeddings that random walks between authors and papers train."""
    relations = [("author", "writes", "paper"), ("paper", "written_by", "author")]
    return pyg.MetaPath2Vec(
        {relation: torch.randint(_NODES, (2, _EDGES), device="cpu") for relation in relations}, 128, metapath=relations,
        walk_length=20, context_size=7, num_nodes_dict={"author": _NODES, "paper": _NODES},
    )  # fmt: skip


# -- tables ------------------------------------------------------------------------------------------------------------


def _all(inputs: Callable[[], Any], modules: Mapping[str, Callable[[], nn.Module]]) -> dict[str, Entry]:
    """Modules that share their inputs."""
    return {name: (make, inputs) for name, make in modules.items()}


def _wide(name: str, **options: Any) -> Callable[[], nn.Module]:
    """A layer from 64 to 64 features."""
    return lambda: getattr(pyg, name)(_WIDTH, _WIDTH, **options)


def _knowledge(name: str) -> Callable[[], nn.Module]:
    """Embeddings of all entities and relations."""
    return lambda: getattr(pyg, name)(_NODES, _RELATIONS, 128)


def _norm(name: str) -> Callable[[], nn.Module]:
    return lambda: getattr(pyg, name)(_WIDTH)


def _basic(name: str, **options: Any) -> Callable[[], nn.Module]:
    """A model of three layers."""
    return lambda: getattr(pyg, name)(_WIDTH, _WIDTH, 3, out_channels=_CLASSES, **options)


_CONVS: dict[str, Entry] = {
    **_all(_graph, {
        "SimpleConv": pyg.SimpleConv,
        "SAGEConv": _wide("SAGEConv"),
        "SAGEConv_max": _wide("SAGEConv", aggr="max", normalize=True, project=True),
        "GraphConv": _wide("GraphConv"),
        "GatedGraphConv": lambda: pyg.GatedGraphConv(_WIDTH, 3),
        "ResGatedGraphConv": _wide("ResGatedGraphConv"),
        "GATConv": _wide("GATConv", heads=_HEADS),
        "GATv2Conv": _wide("GATv2Conv", heads=_HEADS),
        "TransformerConv": _wide("TransformerConv", heads=_HEADS, beta=True),
        "AGNNConv": pyg.AGNNConv,
        "GINConv": lambda: pyg.GINConv(_square(), train_eps=True),
        "MFConv": _wide("MFConv"),
        "EdgeConv": lambda: pyg.EdgeConv(_mlp(2 * _WIDTH, _WIDTH)),
        "FeaStConv": _wide("FeaStConv", heads=_HEADS),
        "HypergraphConv": _wide("HypergraphConv"),
        "PNAConv": lambda: pyg.PNAConv(_WIDTH, _WIDTH, deg=_degrees(), towers=4, **_PNA),
        "ClusterGCNConv": _wide("ClusterGCNConv"),
        "GENConv": _wide("GENConv"),
        "FiLMConv": _wide("FiLMConv"),
        "SuperGATConv": _wide("SuperGATConv", heads=_HEADS),
        "EGConv": _wide("EGConv", aggregators=["symnorm", "max", "std"]),
        "GeneralConv": _wide("GeneralConv", attention=True, heads=_HEADS),
        "GPSConv": lambda: pyg.GPSConv(_WIDTH, pyg.GINConv(_square()), heads=_HEADS),
        "GPSConv_performer": lambda: pyg.GPSConv(_WIDTH, pyg.GINConv(_square()), heads=_HEADS, attn_type="performer"),
        "AntiSymmetricConv": lambda: pyg.AntiSymmetricConv(_WIDTH, num_iters=2),
        "DirGNNConv": lambda: pyg.DirGNNConv(pyg.SAGEConv(_WIDTH, _WIDTH)),
    }),
    **_all(_weighted, {
        "GCNConv": _wide("GCNConv"),
        "ChebConv": _wide("ChebConv", K=3),
        "TAGConv": _wide("TAGConv"),
        "ARMAConv": _wide("ARMAConv", num_stacks=2, num_layers=2),
        "SGConv": _wide("SGConv", K=2),
        "APPNP": lambda: pyg.APPNP(K=5, alpha=0.1),
        "LEConv": _wide("LEConv"),
        "LGConv": pyg.LGConv,
        "SSGConv": _wide("SSGConv", alpha=0.1, K=3),
        "MixHopConv": _wide("MixHopConv", powers=[0, 1, 2]),
        "WLConvContinuous": pyg.WLConvContinuous,
    }),
    **_all(_attributed, {
        "GATConv_edges": _wide("GATConv", heads=_HEADS, edge_dim=_EDGE_WIDTH),
        "GINEConv": lambda: pyg.GINEConv(_square(), edge_dim=_EDGE_WIDTH),
        "NNConv": lambda: pyg.NNConv(_WIDTH, 32, _mlp(_EDGE_WIDTH, 32, _WIDTH * 32)),
        "CGConv": lambda: pyg.CGConv(_WIDTH, dim=_EDGE_WIDTH, batch_norm=True),
        "PDNConv": _wide("PDNConv", edge_dim=_EDGE_WIDTH, hidden_channels=32),
    }),
    **_all(_typed, {
        "RGCNConv": _wide("RGCNConv", num_relations=_RELATIONS),
        "RGCNConv_bases": _wide("RGCNConv", num_relations=_RELATIONS, num_bases=2),
        "RGCNConv_blocks": _wide("RGCNConv", num_relations=_RELATIONS, num_blocks=4),
        "FastRGCNConv": _wide("FastRGCNConv", num_relations=_RELATIONS),
        "RGATConv": _wide("RGATConv", num_relations=_RELATIONS, heads=_HEADS),
        "FiLMConv_relations": _wide("FiLMConv", num_relations=_RELATIONS),
    }),
    **_all(_points, {
        "PointNetConv": lambda: pyg.PointNetConv(_mlp(_WIDTH + 3, _WIDTH), _square()),
        "PointTransformerConv": _wide("PointTransformerConv"),
        "PointGNNConv": lambda: pyg.PointGNNConv(_mlp(_WIDTH, 3), _mlp(_WIDTH + 3, _WIDTH), _square()),
    }),
    **_all(_typed_graph, {
        "HGTConv": lambda: pyg.HGTConv(_WIDTH, _WIDTH, _METADATA, heads=_HEADS),
        "HANConv": lambda: pyg.HANConv(_WIDTH, _WIDTH, _METADATA, heads=_HEADS),
        "HeteroConv": lambda: pyg.HeteroConv({relation: pyg.SAGEConv((_WIDTH, _WIDTH), _WIDTH)
                                              for relation in _METADATA[1]}),
    }),
    "SAGEConv_lstm": (_wide("SAGEConv", aggr="lstm"), lambda: (_x(), _sorted_edges())),
    "SignedConv": (lambda: pyg.SignedConv(_WIDTH, _WIDTH, first_aggr=True), lambda: (*_graph(), _edges())),
    "DNAConv": (lambda: pyg.DNAConv(_WIDTH, heads=_HEADS), lambda: (torch.randn(_NODES, 3, _WIDTH), _edges())),
    "GMMConv": (_wide("GMMConv", dim=3, kernel_size=5), lambda: (*_graph(), _edge_attr(3))),
    "PPFConv": (lambda: pyg.PPFConv(_mlp(_WIDTH + 4, _WIDTH), _square()),
                lambda: (_x(), torch.rand(_NODES, 3), torch.rand(_NODES, 3), _edges())),
    "GCN2Conv": (lambda: pyg.GCN2Conv(_WIDTH, alpha=0.1, theta=0.5, layer=1), lambda: (_x(), _x(), _edges())),
    "FAConv": (lambda: pyg.FAConv(_WIDTH), lambda: (_x(), _x(), _edges())),
    "WLConv": (pyg.WLConv, lambda: (torch.randint(5, (_NODES,)), _edges())),
    "HEATConv": (_wide("HEATConv", num_node_types=3, num_edge_types=_RELATIONS, edge_type_emb_dim=8,
                       edge_dim=_EDGE_WIDTH, edge_attr_emb_dim=16, heads=_HEADS),
                 lambda: (*_graph(), torch.randint(3, (_NODES,)), _edge_type(), _edge_attr())),
    "MeshCNNConv": (_wide("MeshCNNConv"),
                    lambda: (_x(), torch.stack([torch.randint(_NODES, (4 * _NODES,)),
                                                torch.arange(_NODES).repeat_interleave(4)]))),
}  # fmt: skip

_NETWORKS: dict[str, Entry] = {
    **_all(_graph, {
        "GCN": _basic("GCN"),
        "GCN_jk": _basic("GCN", norm="batch", jk="cat"),
        "GraphSAGE": _basic("GraphSAGE"),
        "GIN": _basic("GIN", norm="graph_norm"),
        "GAT": _basic("GAT", heads=_HEADS),
        "GATv2": _basic("GAT", v2=True, heads=_HEADS, jk="lstm"),
        "PNA": lambda: pyg.PNA(_WIDTH, _WIDTH, 3, out_channels=_CLASSES, deg=_degrees(), **_PNA),
        "EdgeCNN": _basic("EdgeCNN"),
        "GraphUNet": lambda: pyg.GraphUNet(_WIDTH, _WIDTH, _CLASSES, depth=3),
        "LINKX": lambda: pyg.LINKX(_NODES, _WIDTH, _WIDTH, _CLASSES, num_layers=2),
        "PMLP": lambda: pyg.PMLP(_WIDTH, _WIDTH, _CLASSES, num_layers=3),
        "DeepGCNLayer": _DeepGCN,
        "NeuralFingerprint": lambda: pyg.NeuralFingerprint(_WIDTH, _WIDTH, _CLASSES, num_layers=3),
        "RECT_L": lambda: pyg.RECT_L(_WIDTH, _WIDTH),
        "GAE": lambda: pyg.GAE(pyg.GCNConv(_WIDTH, 32)),
        "GAE_loss": lambda: _Method(pyg.GAE(pyg.InnerProductDecoder()), "recon_loss"),
        "VGAE": lambda: _Method(pyg.VGAE(_Variational()), "encode"),
        "ARGA": lambda: pyg.ARGA(pyg.GCNConv(_WIDTH, 32), _mlp(32, 1)),
        "ARGVA": lambda: _Method(pyg.ARGVA(_Variational(), _mlp(32, 1)), "encode"),
        "InnerProductDecoder": pyg.InnerProductDecoder,
        "DeepGraphInfomax": lambda: pyg.DeepGraphInfomax(
            _WIDTH, pyg.GCNConv(_WIDTH, _WIDTH), summary=lambda z, *_: z.mean(0).sigmoid(),
            corruption=lambda x, edges: (x[torch.randperm(x.size(0))], edges)),
        "ARLinkPredictor": lambda: pyg.ARLinkPredictor(_WIDTH, _WIDTH),
        "GroupAddRev": lambda: pyg.GroupAddRev(pyg.SAGEConv(32, 32), num_groups=2),
    }),
    **_all(_graphs, {
        "Polynormer": lambda: pyg.Polynormer(_WIDTH, _WIDTH, _CLASSES, local_layers=2, heads=_HEADS),
        "SGFormer": lambda: pyg.SGFormer(_WIDTH, _WIDTH, _CLASSES),
        "GPSConv_batch": lambda: pyg.GPSConv(_WIDTH, pyg.GINConv(_square()), heads=_HEADS),
    }),
    "AttentiveFP": (lambda: pyg.AttentiveFP(_WIDTH, _WIDTH, 1, _EDGE_WIDTH, num_layers=2, num_timesteps=2),
                    lambda: (_x(), _edges_within(), _edge_attr(), _batch())),
    "SchNet": (lambda: pyg.SchNet(interaction_graph=_schnet_edges), _molecule),
    "LightGCN": (lambda: pyg.LightGCN(_NODES, _WIDTH, num_layers=3), lambda: (_edges(),)),
    "SignedGCN": (lambda: pyg.SignedGCN(_WIDTH, _WIDTH, num_layers=2), lambda: (*_graph(), _edges())),
    "MetaPath2Vec": (_metapath, lambda: ("author",)),
    "MetaLayer": (lambda: pyg.MetaLayer(_EdgeModel(), _NodeModel()), _attributed),
    "MLP": (lambda: pyg.MLP([_WIDTH, 128, 128, _CLASSES], dropout=0.5), lambda: (_x(),)),
    "MaskLabel": (lambda: pyg.MaskLabel(_CLASSES, _WIDTH),
                  lambda: (_x(), torch.randint(_CLASSES, (_NODES,)), torch.arange(_NODES) % 2 == 0)),
    "LabelPropagation": (lambda: pyg.LabelPropagation(3, alpha=0.9),
                         lambda: (torch.randint(_CLASSES, (_NODES,)), _edges(), torch.arange(_NODES) % 4 == 0)),
    "CorrectAndSmooth": (lambda: _Method(pyg.CorrectAndSmooth(3, 0.9, 3, 0.9), "smooth"),
                         lambda: (torch.rand(_NODES, _CLASSES), torch.randint(_CLASSES, (500,)), torch.arange(500),
                                  _edges())),
    "JumpingKnowledge": (lambda: pyg.JumpingKnowledge("lstm", channels=_WIDTH, num_layers=3),
                         lambda: ([_x(), _x(), _x()],)),
    "HeteroJumpingKnowledge": (lambda: pyg.HeteroJumpingKnowledge(_METADATA[0], "max"),
                               lambda: ({kind: [_x(), _x()] for kind in _METADATA[0]},)),
    "TGNMemory": (lambda: pyg.TGNMemory(_NODES, _EDGE_WIDTH, 100, 100, IdentityMessage(_EDGE_WIDTH, 100, 100),
                                        LastAggregator()),
                  lambda: (torch.arange(200),)),
    "GPSENodeEncoder": (lambda: pyg.GPSENodeEncoder(_WIDTH, 32, 16, dim_in=_WIDTH, expand_x=True),
                        lambda: (_x(), _x(width=32))),
    "QFormer": (lambda: pyg.QFormer(_WIDTH, _WIDTH, _WIDTH, num_heads=_HEADS, num_layers=2),
                lambda: (torch.randn(8, _GRAPH_NODES, _WIDTH),)),
    **_all(lambda: (torch.randn(8, _GRAPH_NODES, _WIDTH),), {
        "PerformerAttention": lambda: pyg.PerformerAttention(_WIDTH, heads=_HEADS),
        "PolynormerAttention": lambda: pyg.PolynormerAttention(_WIDTH, heads=_HEADS),
        "SGFormerAttention": lambda: pyg.SGFormerAttention(_WIDTH, heads=_HEADS),
    }),
    **_all(_triples, {name: _knowledge(name) for name in ("ComplEx", "DistMult", "RotatE", "TransE")}),
}  # fmt: skip

_AGGREGATIONS = _all(_grouped, {
    **{name: getattr(pyg, name) for name in (
        "MaxAggregation", "MeanAggregation", "MedianAggregation", "MinAggregation", "MulAggregation",
        "PowerMeanAggregation", "SoftmaxAggregation", "StdAggregation", "SumAggregation", "VarAggregation",
        "VariancePreservingAggregation",
    )},
    "AttentionalAggregation": lambda: pyg.AttentionalAggregation(_mlp(_WIDTH, 1), _square()),
    "DeepSetsAggregation": lambda: pyg.DeepSetsAggregation(_square(), _square()),
    "DegreeScalerAggregation": lambda: pyg.DegreeScalerAggregation("mean", "amplification", _degrees()),
    "EquilibriumAggregation": lambda: pyg.EquilibriumAggregation(_WIDTH, 32, num_layers=[32]),
    "GraphMultisetTransformer": lambda: pyg.GraphMultisetTransformer(_WIDTH, k=10, heads=_HEADS),
    "GRUAggregation": _wide("GRUAggregation"),
    "LCMAggregation": _wide("LCMAggregation"),
    "LSTMAggregation": _wide("LSTMAggregation"),
    "MLPAggregation": _wide("MLPAggregation", max_num_elements=_GRAPH_NODES, num_layers=1),
    "MultiAggregation": lambda: pyg.MultiAggregation(["mean", "max", "std"]),
    "MultiAggregation_fused": lambda: pyg.MultiAggregation(["mean", "sum", "var"]),
    "PatchTransformerAggregation": _wide("PatchTransformerAggregation", patch_size=10, hidden_channels=_WIDTH),
    "QuantileAggregation": lambda: pyg.QuantileAggregation(0.75),
    "Set2Set": lambda: pyg.Set2Set(_WIDTH, processing_steps=3),
    "SetTransformerAggregation": lambda: pyg.SetTransformerAggregation(_WIDTH, heads=_HEADS),
    "SoftmaxAggregation_learned": lambda: pyg.SoftmaxAggregation(learn=True, channels=_WIDTH),
    "SortAggregation": lambda: pyg.SortAggregation(k=30),
    "global_add_pool": lambda: _Call(pyg.global_add_pool),
    "global_max_pool": lambda: _Call(pyg.global_max_pool),
    "global_mean_pool": lambda: _Call(pyg.global_mean_pool),
})  # fmt: skip

_POOLING: dict[str, Entry] = {
    **_all(lambda: (_x(), _edges_within(), None, _batch()), {
        "TopKPooling": lambda: pyg.TopKPooling(_WIDTH, ratio=0.5),
        "TopKPooling_min_score": lambda: pyg.TopKPooling(_WIDTH, min_score=0.02),
        "SAGPooling": lambda: pyg.SAGPooling(_WIDTH, ratio=0.5),
        "ASAPooling": lambda: pyg.ASAPooling(_WIDTH, ratio=0.5),
    }),
    **_all(lambda: (_x(500), torch.randint(500, (2, 2_000)), torch.zeros(500, dtype=torch.long)), {
        "EdgePooling": lambda: pyg.EdgePooling(_WIDTH),
        "ClusterPooling": lambda: pyg.ClusterPooling(_WIDTH),
    }),
    "MemPooling": (lambda: pyg.MemPooling(_WIDTH, _WIDTH, heads=_HEADS, num_clusters=10), _grouped),
}  # fmt: skip

_NORMS: dict[str, Entry] = _all(_grouped, {
    **{name: _norm(name) for name in ("GraphNorm", "InstanceNorm", "LayerNorm")},
    "InstanceNorm_statistics": lambda: pyg.InstanceNorm(_WIDTH, affine=True, track_running_stats=True),
    **{name: getattr(pyg, name) for name in ("GraphSizeNorm", "MeanSubtractionNorm", "PairNorm")},
}) | _all(lambda: (_x(),), {
    "BatchNorm": lambda: pyg.BatchNorm(_WIDTH),
    "DiffGroupNorm": lambda: pyg.DiffGroupNorm(_WIDTH, groups=4),
}) | _all(lambda: (_x(), torch.randint(_RELATIONS, (_NODES,))), {
    "HeteroBatchNorm": lambda: pyg.HeteroBatchNorm(_WIDTH, _RELATIONS),
    "HeteroLayerNorm": lambda: pyg.HeteroLayerNorm(_WIDTH, _RELATIONS),
    "HeteroLinear": lambda: pyg.HeteroLinear(_WIDTH, _WIDTH, _RELATIONS),
}) | {
    "MessageNorm": (lambda: pyg.MessageNorm(learn_scale=True), lambda: (_x(), _x())),
}  # fmt: skip

_DENSE: dict[str, Entry] = _all(_dense, {
    "DenseGATConv": _wide("DenseGATConv", heads=_HEADS),
    "DenseGCNConv": _wide("DenseGCNConv"),
    "DenseGINConv": lambda: pyg.DenseGINConv(_square()),
    "DenseGraphConv": _wide("DenseGraphConv"),
    "DenseSAGEConv": _wide("DenseSAGEConv"),
    "DMoNPooling": lambda: pyg.DMoNPooling(_WIDTH, k=10),
}) | _all(lambda: (*_dense(), torch.randn(8, _GRAPH_NODES, 10)), {
    "dense_diff_pool": lambda: _Call(pyg.dense_diff_pool),
    "dense_mincut_pool": lambda: _Call(pyg.dense_mincut_pool),
}) | {
    "Linear": (lambda: pyg.Linear(_WIDTH, _WIDTH), lambda: (_x(),)),
    "Linear_lazy": (lambda: pyg.Linear(-1, _WIDTH), lambda: (_x(),)),
    "HeteroDictLinear": (lambda: pyg.HeteroDictLinear(_WIDTH, _WIDTH, types=_METADATA[0]),
                         lambda: (_typed_graph()[0],)),
    "PositionalEncoding": (lambda: pyg.PositionalEncoding(_WIDTH), lambda: (torch.rand(_NODES),)),
    "TemporalEncoding": (lambda: pyg.TemporalEncoding(_WIDTH), lambda: (torch.rand(_NODES),)),
}  # fmt: skip

MODELS: dict[str, Entry] = {**_CONVS, **_NETWORKS, **_AGGREGATIONS, **_POOLING, **_NORMS, **_DENSE}
