"""Loss functions: KL divergence, smooth L1, hinge, triplet margin, cosine, cross entropy and NLL."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def forward(self, anchor, positive, negative, labels):
        log_p = anchor.log_softmax(dim=-1)
        sign = 1 - 2 * (labels % 2)
        return (
            F.kl_div(log_p, positive.softmax(dim=-1), reduction="batchmean")
            + F.smooth_l1_loss(anchor, positive)
            + F.huber_loss(anchor, positive, delta=0.5)
            + torch.clamp(1 - anchor * sign[:, None], min=0).mean()
            + F.triplet_margin_loss(anchor, positive, negative)
            + F.cosine_embedding_loss(anchor, positive, sign)
            + F.cross_entropy(anchor, labels, label_smoothing=0.1)
            + F.nll_loss(log_p, labels)
            + F.mse_loss(anchor, negative)
        )


def get_inputs():
    anchor, positive, negative = (torch.randn(128, 4096, requires_grad=True) for _ in range(3))
    return [anchor, positive, negative, torch.randint(4096, (128,))]
