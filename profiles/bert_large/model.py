"""BERT-large, uncased, with its masked-LM head (Devlin et al. 2018, section 3; google-research/bert), fp16.

The head scores every position, and its decoder shares the word embedding's weight, as in the released code.
"""

import torch
from torch import nn
from torch.nn import functional as F

VOCAB, POSITIONS, SEGMENTS = 30522, 512, 2
WIDTH, HEADS, FFN, LAYERS, DROPOUT = 1024, 16, 4096, 24, 0.1


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (heads(project(x)) for project in (self.query, self.key, self.value))
        p = DROPOUT if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=p)
        return self.out(mixed.transpose(1, 2).flatten(2))


def heads(x):
    """[batch, seq, width] -> [batch, heads, seq, width / heads]"""
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


class Layer(nn.Module):
    """Post-norm encoder layer."""

    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.norm1 = nn.LayerNorm(WIDTH, eps=1e-12)
        self.linear1 = nn.Linear(WIDTH, FFN)
        self.linear2 = nn.Linear(FFN, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH, eps=1e-12)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x):
        x = self.norm1(x + self.dropout(self.attention(x)))
        return self.norm2(x + self.dropout(self.linear2(F.gelu(self.linear1(x)))))


class Embeddings(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(VOCAB, WIDTH)
        nn.init.normal_(self.word.weight, std=0.02)
        self.position = nn.Embedding(POSITIONS, WIDTH)
        self.segment = nn.Embedding(SEGMENTS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, ids):
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.word(ids) + self.position(positions) + self.segment(torch.zeros_like(ids))
        return self.dropout(self.norm(x))


class MaskedLMHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.decoder = nn.Linear(WIDTH, VOCAB)

    def forward(self, x):
        return self.decoder(self.norm(F.gelu(self.dense(x))))


class BertLarge(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = Embeddings()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = MaskedLMHead()
        self.head.decoder.weight = self.embeddings.word.weight

    def forward(self, ids):
        x = self.embeddings(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def model():
    return BertLarge().to(torch.float16)


def inputs(batch=8, seq=512):
    return (torch.randint(VOCAB, (batch, seq)),)


def loss(logits):
    labels = torch.zeros(logits.shape[:2], dtype=torch.long, device=logits.device)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01)
