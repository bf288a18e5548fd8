"""Small networks written by hand for the census: recurrent, recommenders, graphs, convolutions of every kind, odd
operators.

`add_networks(table)` adds NET/NAME: a function that returns (module, inputs), as in architectures.py.
"""
import math

import torch
from torch import nn
from torch.nn import functional as F

BATCH = 3


def simple(module, **inputs):
    return module.eval(), inputs


class Call(nn.Module):
    """A network from its parts and a function with the arguments (parts, inputs...)."""

    def __init__(self, function, **parts):
        super().__init__()
        self.parts = nn.ModuleDict({k: v for k, v in parts.items() if isinstance(v, nn.Module)})
        for k, v in parts.items():
            if isinstance(v, nn.Parameter):
                self.register_parameter(k, v)
        self.function = function

    def forward(self, *inputs):
        return self.function(self, *inputs)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            parts = self.__dict__["_modules"].get("parts", {})
            if name not in parts:
                raise
            return parts[name]


def weight(*shape):
    return nn.Parameter(torch.randn(*shape) * 0.3)


def picture(side=16, channels=3):
    return torch.randn(BATCH, channels, side, side)


def recurrent(table):
    for name, cell, more in (("lstm", nn.LSTM, {}), ("gru", nn.GRU, {}), ("rnn", nn.RNN, {}),
                             ("lstm_both_ways", nn.LSTM, dict(bidirectional=True, num_layers=2)),
                             ("gru_both_ways", nn.GRU, dict(bidirectional=True))):
        def build(cell=cell, more=more):
            width = 16 * (2 if more.get("bidirectional") else 1)
            net = Call(lambda s, x: s.head(s.cell(x)[0][:, -1]), cell=cell(8, 16, batch_first=True, **more),
                       head=nn.Linear(width, 5))
            return simple(net, x=torch.randn(BATCH, 6, 8))
        table["net/" + name] = build
    table["net/lstm_text"] = lambda: simple(Call(
        lambda s, x: s.head(s.cell(s.table(x))[0]), table=nn.Embedding(32, 16), cell=nn.LSTM(16, 16, batch_first=True),
        head=nn.Linear(16, 32)), tokens=torch.randint(0, 32, (BATCH, 6)))
    table["net/crnn"] = lambda: simple(Call(
        lambda s, x: s.head(s.cell(F.relu(s.conv(x)).mean(2).transpose(1, 2))[0]), conv=nn.Conv2d(1, 8, 3, padding=1),
        cell=nn.GRU(8, 8, batch_first=True, bidirectional=True), head=nn.Linear(16, 7)), image=picture(16, 1))

    def cell_loop(s, x):
        h = torch.zeros(x.shape[0], 16)
        for t in range(x.shape[1]):
            h = s.cell(x[:, t], h)
        return s.head(h)
    table["net/gru_cell_loop"] = lambda: simple(Call(cell_loop, cell=nn.GRUCell(8, 16), head=nn.Linear(16, 5)),
                                                x=torch.randn(BATCH, 5, 8))


def convolutional(table):
    def conv(i, o, **k):
        return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, **k), nn.BatchNorm2d(o), nn.ReLU())

    def unet(s, x):
        a = s.a(x)
        b = s.b(F.max_pool2d(a, 2))
        return s.out(torch.cat([a, F.interpolate(b, scale_factor=2, mode="bilinear", align_corners=False)], 1))
    table["net/unet"] = lambda: simple(Call(unet, a=conv(3, 8), b=conv(8, 8), out=nn.Conv2d(16, 4, 1)), image=picture())
    table["net/autoencoder"] = lambda: simple(nn.Sequential(
        nn.Conv2d(3, 8, 4, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Sigmoid()), image=picture())
    table["net/super_resolution"] = lambda: simple(nn.Sequential(
        nn.Conv2d(1, 8, 5, padding=2), nn.Tanh(), nn.Conv2d(8, 4, 3, padding=1), nn.PixelShuffle(2)), image=picture(8, 1))
    table["net/style_transfer"] = lambda: simple(nn.Sequential(
        nn.ReflectionPad2d(1), nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, affine=True), nn.ReLU(), nn.Upsample(scale_factor=2),
        nn.ReplicationPad2d(1), nn.Conv2d(8, 3, 3)), image=picture(8))
    table["net/conv1d_dilated"] = lambda: simple(nn.Sequential(
        nn.Conv1d(4, 8, 3, padding=2, dilation=2), nn.ReLU(), nn.Conv1d(8, 8, 3, padding=4, dilation=4), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 5)), x=torch.randn(BATCH, 4, 20))
    table["net/conv3d"] = lambda: simple(nn.Sequential(
        nn.Conv3d(2, 4, 3, padding=1), nn.ELU(), nn.MaxPool3d(2), nn.Flatten(), nn.Linear(4 * 2 * 4 * 4, 5)),
        x=torch.randn(BATCH, 2, 4, 8, 8))
    table["net/group_norm"] = lambda: simple(nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.SiLU(), nn.Conv2d(8, 8, 3, stride=2), nn.GroupNorm(2, 8), nn.Mish(),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8, 5)), image=picture())
    table["net/local_response"] = lambda: simple(nn.Sequential(
        nn.Conv2d(3, 8, 5, 2), nn.ReLU(), nn.LocalResponseNorm(3), nn.MaxPool2d(3, 2), nn.Flatten(), nn.Linear(32, 5)),
        image=picture())
    table["net/batch_norm_apart"] = lambda: simple(nn.Sequential(
        nn.BatchNorm2d(3), nn.Conv2d(3, 8, 3), nn.LeakyReLU(0.1), nn.BatchNorm2d(8), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(392, 5)), image=picture())
    table["net/depthwise_se"] = lambda: simple(Call(
        lambda s, x: s.head((s.dw(x) * s.gate(s.dw(x))).mean((2, 3))),
        dw=nn.Sequential(nn.Conv2d(3, 12, 3, padding=1, groups=3), nn.Hardswish()),
        gate=nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(12, 4, 1), nn.ReLU6(), nn.Conv2d(4, 12, 1), nn.Hardsigmoid()),
        head=nn.Linear(12, 5)), image=picture())
    table["net/bicubic"] = lambda: simple(Call(
        lambda s, x: s.out(F.interpolate(s.a(x), size=(12, 12), mode="bicubic", align_corners=True)),
        a=nn.Conv2d(3, 4, 3), out=nn.Conv2d(4, 2, 1)), image=picture(8))
    table["net/spatial_transformer"] = lambda: simple(Call(
        lambda s, x: s.out(F.grid_sample(x, F.affine_grid(s.loc(x).view(-1, 2, 3), list(x.shape), align_corners=False),
                                         align_corners=False)),
        loc=nn.Sequential(nn.Flatten(), nn.Linear(192, 6)), out=nn.Conv2d(3, 2, 3)), image=picture(8))

    def unpool(s, x):
        y, where = F.max_pool2d(s.a(x), 2, return_indices=True)
        return s.out(F.max_unpool2d(y, where, 2))
    table["net/max_unpool"] = lambda: simple(Call(unpool, a=nn.Conv2d(3, 4, 3, padding=1), out=nn.Conv2d(4, 2, 1)),
                                             image=picture(8))
    table["net/residual_dense"] = lambda: simple(Call(
        lambda s, x: s.head(F.adaptive_avg_pool2d(torch.cat([s.a(x), s.b(s.a(x)) + s.a(x)], 1), 2).flatten(1)),
        a=conv(3, 8), b=conv(8, 8), head=nn.Linear(64, 5)), image=picture())
    table["net/fold_unfold"] = lambda: simple(Call(
        lambda s, x: F.fold(s.mix(F.unfold(x, 2, stride=2).transpose(1, 2)).transpose(1, 2), (8, 8), 2, stride=2),
        mix=nn.Linear(12, 12)), image=picture(8))


def tabular(table):
    table["net/mlp"] = lambda: simple(nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 5)), x=torch.randn(BATCH, 10))
    for name, act in (("tanh", nn.Tanh), ("gelu", nn.GELU), ("gelu_tanh", lambda: nn.GELU("tanh")), ("selu", nn.SELU),
                      ("celu", nn.CELU), ("softplus", nn.Softplus), ("softsign", nn.Softsign), ("prelu", nn.PReLU),
                      ("hardtanh", nn.Hardtanh), ("softshrink", nn.Softshrink), ("hardshrink", nn.Hardshrink),
                      ("logsigmoid", nn.LogSigmoid), ("glu", lambda: nn.GLU()), ("threshold", lambda: nn.Threshold(0.1, 0.0)),
                      ("tanhshrink", nn.Tanhshrink), ("rrelu", nn.RReLU)):
        table["net/mlp_" + name] = lambda act=act, name=name: simple(nn.Sequential(
            nn.Linear(10, 16), act(), nn.Linear(8 if name == "glu" else 16, 5)), x=torch.randn(BATCH, 10))

    def mixer(s, x):
        y = x + s.tokens(s.n1(x).transpose(1, 2)).transpose(1, 2)
        return s.head((y + s.channels(s.n2(y))).mean(1))
    table["net/mixer"] = lambda: simple(Call(
        mixer, n1=nn.LayerNorm(8), n2=nn.LayerNorm(8), tokens=nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6)),
        channels=nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8)), head=nn.Linear(8, 5)), x=torch.randn(BATCH, 6, 8))

    def dlrm(s, dense, ids):
        v = torch.cat([s.bottom(dense).unsqueeze(1), s.table(ids)], 1)
        cross = torch.bmm(v, v.transpose(1, 2))
        i, j = torch.tril_indices(4, 4, -1)
        return s.top(torch.cat([v[:, 0], cross[:, i, j]], 1))
    table["net/dlrm"] = lambda: simple(Call(
        dlrm, bottom=nn.Linear(5, 8), table=nn.Embedding(20, 8), top=nn.Sequential(nn.Linear(14, 8), nn.ReLU(), nn.Linear(8, 1))),
        dense=torch.randn(BATCH, 5), ids=torch.randint(0, 20, (BATCH, 3)))

    def fm(s, ids):
        v = s.table(ids)
        return s.linear(ids).sum((1, 2)) + 0.5 * (v.sum(1) ** 2 - (v ** 2).sum(1)).sum(1) + s.deep(v.flatten(1)).squeeze(1)
    table["net/deep_fm"] = lambda: simple(Call(
        fm, table=nn.Embedding(30, 4), linear=nn.Embedding(30, 1), deep=nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))),
        ids=torch.randint(0, 30, (BATCH, 4)))
    table["net/embedding_bag"] = lambda: simple(Call(
        lambda s, ids: s.head(s.table(ids)), table=nn.EmbeddingBag(30, 8, mode="mean"), head=nn.Linear(8, 5)),
        ids=torch.randint(0, 30, (BATCH, 4)))
    table["net/two_towers"] = lambda: simple(Call(
        lambda s, a, b: F.cosine_similarity(s.a(a), s.b(b)) * 5, a=nn.Linear(6, 8), b=nn.Linear(7, 8)),
        user=torch.randn(BATCH, 6), item=torch.randn(BATCH, 7))
    table["net/bilinear"] = lambda: simple(Call(
        lambda s, a, b: s.head(torch.tanh(s.mix(a, b))), mix=nn.Bilinear(6, 7, 8), head=nn.Linear(8, 5)),
        a=torch.randn(BATCH, 6), b=torch.randn(BATCH, 7))
    table["net/highway"] = lambda: simple(Call(
        lambda s, x: s.head(torch.sigmoid(s.t(x)) * torch.relu(s.h(x)) + (1 - torch.sigmoid(s.t(x))) * x),
        t=nn.Linear(8, 8), h=nn.Linear(8, 8), head=nn.Linear(8, 5)), x=torch.randn(BATCH, 8))
    table["net/weight_norm"] = lambda: simple(nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, 5)), x=torch.randn(BATCH, 8))
    table["net/splines"] = lambda: simple(Call(
        lambda s, x: torch.einsum("bik,iko->bo", torch.exp(-(x.unsqueeze(-1) - s.grid) ** 2), s.coef),
        grid=weight(6), coef=weight(8, 6, 5)), x=torch.randn(BATCH, 8))
    table["net/soft_experts"] = lambda: simple(Call(
        lambda s, x: torch.einsum("be,beo->bo", s.gate(x).softmax(-1), torch.einsum("bi,eio->beo", x, s.w)),
        gate=nn.Linear(8, 4), w=weight(4, 8, 5)), x=torch.randn(BATCH, 8))
    table["net/top_experts"] = lambda: simple(Call(
        lambda s, x: (torch.einsum("bi,eio->beo", x, s.w) * torch.zeros(x.shape[0], 4).scatter(
            1, s.gate(x).topk(2)[1], s.gate(x).topk(2)[0].softmax(-1)).unsqueeze(-1)).sum(1),
        gate=nn.Linear(8, 4), w=weight(4, 8, 5)), x=torch.randn(BATCH, 8))
    table["net/ode_steps"] = lambda: simple(Call(
        lambda s, x: s.head(s.f(x + 0.1 * s.f(x)) * 0.1 + x), f=nn.Sequential(nn.Linear(8, 8), nn.Tanh()), head=nn.Linear(8, 5)),
        x=torch.randn(BATCH, 8))
    table["net/sirens"] = lambda: simple(Call(
        lambda s, x: s.b(torch.sin(3 * s.a(torch.cat([x, torch.cos(x), torch.atan(x)], 1)))), a=nn.Linear(9, 16),
        b=nn.Linear(16, 2)), x=torch.randn(BATCH, 3))
    table["net/quantiles"] = lambda: simple(Call(
        lambda s, x: torch.cumsum(F.softplus(s.a(x)), 1), a=nn.Linear(8, 5)), x=torch.randn(BATCH, 8))
    table["net/sorted"] = lambda: simple(Call(
        lambda s, x: s.b(torch.sort(s.a(x), 1)[0]), a=nn.Linear(8, 8), b=nn.Linear(8, 5)), x=torch.randn(BATCH, 8))
    table["net/norms"] = lambda: simple(Call(
        lambda s, x: s.b(F.normalize(s.a(x), dim=1) * s.a(x).norm(dim=1, keepdim=True).clamp(0.1, 10)
                         + s.a(x).abs().amax(1, keepdim=True) - s.a(x).logsumexp(1, keepdim=True) + s.a(x).var(1, keepdim=True)),
        a=nn.Linear(8, 8), b=nn.Linear(8, 5)), x=torch.randn(BATCH, 8))
    table["net/hypernetwork"] = lambda: simple(Call(
        lambda s, x: torch.bmm(s.make(x).view(-1, 5, 8), x.unsqueeze(2)).squeeze(2), make=nn.Linear(8, 40)),
        x=torch.randn(BATCH, 8))
    table["net/determinant"] = lambda: simple(Call(
        lambda s, x: torch.linalg.det(s.a(x).view(-1, 3, 3)).unsqueeze(1), a=nn.Linear(8, 9)), x=torch.randn(BATCH, 8))


def sequences_and_graphs(table):
    table["net/transformer_encoder"] = lambda: simple(Call(
        lambda s, x: s.head(s.body(x)), body=nn.TransformerEncoder(nn.TransformerEncoderLayer(
            16, 2, 32, batch_first=True, norm_first=True), 2, enable_nested_tensor=False), head=nn.Linear(16, 5)),
        x=torch.randn(BATCH, 6, 16))
    table["net/transformer_decoder"] = lambda: simple(Call(
        lambda s, x, m: s.body(x, m), body=nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 2, 32, batch_first=True), 1)),
        x=torch.randn(BATCH, 5, 16), memory=torch.randn(BATCH, 6, 16))
    table["net/multihead"] = lambda: simple(Call(
        lambda s, x: s.body(x, x, x, need_weights=False)[0], body=nn.MultiheadAttention(16, 4, batch_first=True)),
        x=torch.randn(BATCH, 6, 16))
    table["net/linear_attention"] = lambda: simple(Call(
        lambda s, x: s.o(torch.einsum("bnd,bde->bne", F.elu(s.q(x)) + 1, torch.einsum("bnd,bne->bde", F.elu(s.k(x)) + 1, s.v(x)))),
        q=nn.Linear(8, 8), k=nn.Linear(8, 8), v=nn.Linear(8, 8), o=nn.Linear(8, 5)), x=torch.randn(BATCH, 6, 8))

    def gcn(s, x, adjacency):
        norm = adjacency / adjacency.sum(2, keepdim=True).clamp(min=1)
        return s.b(norm @ torch.relu(s.a(norm @ x)))
    table["net/graph_dense"] = lambda: simple(Call(gcn, a=nn.Linear(6, 8), b=nn.Linear(8, 3)), x=torch.randn(BATCH, 5, 6),
                                              adjacency=(torch.rand(BATCH, 5, 5) > 0.5).float())

    def edges(s, x, edge):
        source = torch.gather(s.a(x), 1, edge[:, :1].transpose(1, 2).expand(-1, -1, 8))
        goal = edge[:, 1:].transpose(1, 2).expand(-1, -1, 8)
        return s.b(torch.zeros(x.shape[0], 5, 8).scatter_add(1, goal, torch.relu(source)))
    table["net/graph_edges"] = lambda: simple(Call(edges, a=nn.Linear(6, 8), b=nn.Linear(8, 3)), x=torch.randn(BATCH, 5, 6),
                                              edge=torch.randint(0, 5, (BATCH, 2, 9)))

    def attention_graph(s, x, adjacency):
        h = s.a(x)
        score = F.leaky_relu(s.left(h) + s.right(h).transpose(1, 2), 0.2).masked_fill(adjacency == 0, -1e9)
        return s.b(score.softmax(-1) @ h)
    table["net/graph_attention"] = lambda: simple(Call(
        attention_graph, a=nn.Linear(6, 8), left=nn.Linear(8, 1), right=nn.Linear(8, 1), b=nn.Linear(8, 3)),
        x=torch.randn(BATCH, 5, 6), adjacency=((torch.rand(BATCH, 5, 5) > 0.5) | torch.eye(5).bool()).float())

    def point_net(s, x):
        return s.head(torch.max(s.b(torch.relu(s.a(x))), 1)[0])
    table["net/point_net"] = lambda: simple(Call(point_net, a=nn.Linear(3, 8), b=nn.Linear(8, 16), head=nn.Linear(16, 5)),
                                            points=torch.randn(BATCH, 10, 3))
    table["net/neighbours"] = lambda: simple(Call(
        lambda s, x: s.head((s.a(x).unsqueeze(1) - s.a(x).unsqueeze(2)).relu().topk(2, dim=2, largest=False)[0].sum((1, 2))),
        a=nn.Linear(3, 8), head=nn.Linear(8, 5)), points=torch.randn(BATCH, 6, 3))

    def rotary(s, x):
        q, k = s.q(x), s.k(x)
        angle = torch.arange(6)[:, None] / (10 ** (torch.arange(4) / 4))
        def turn(t):
            a, b = t.chunk(2, -1)
            return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)
        return F.scaled_dot_product_attention(turn(q)[:, None], turn(k)[:, None], s.v(x)[:, None], is_causal=True)[:, 0]
    table["net/rotary_attention"] = lambda: simple(Call(rotary, q=nn.Linear(8, 8), k=nn.Linear(8, 8), v=nn.Linear(8, 5)),
                                                   x=torch.randn(BATCH, 6, 8))

    def spectrum(s, x):
        return s.head(torch.fft.rfft(s.a(x)).abs())
    table["net/spectrum"] = lambda: simple(Call(spectrum, a=nn.Linear(8, 8), head=nn.Linear(5, 3)), x=torch.randn(BATCH, 8))

    def diffusion(s, x, t):
        angle = t[:, None].float() * torch.exp(-math.log(100.0) * torch.arange(8) / 8)
        e = s.time(torch.cat([angle.sin(), angle.cos()], 1))
        h = F.silu(s.norm(s.a(x))) + e[:, :, None, None]
        return s.out(h)
    table["net/diffusion_step"] = lambda: simple(Call(
        diffusion, time=nn.Sequential(nn.Linear(16, 8), nn.SiLU(), nn.Linear(8, 8)), a=nn.Conv2d(3, 8, 3, padding=1),
        norm=nn.GroupNorm(2, 8), out=nn.Conv2d(8, 3, 3, padding=1)), image=picture(8), t=torch.randint(0, 100, (BATCH,)))

    def matching(s, x):
        return s.head(torch.where(s.a(x) > 0, s.a(x) ** 2, torch.exp(s.a(x)) - 1).roll(1, 1).flip(1))
    table["net/where_roll_flip"] = lambda: simple(Call(matching, a=nn.Linear(8, 8), head=nn.Linear(8, 5)), x=torch.randn(BATCH, 8))
    table["net/wide_scatter"] = lambda: simple(Call(
        lambda s, x: s.head(torch.zeros(x.shape[0], 12).index_copy(1, torch.tensor([1, 3, 5, 7, 9, 11, 0, 2]), s.a(x))),
        a=nn.Linear(8, 8), head=nn.Linear(12, 5)), x=torch.randn(BATCH, 8))


def add_networks(table):
    for fill in (recurrent, convolutional, tabular, sequences_and_graphs):
        fill(table)
