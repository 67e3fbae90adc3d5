"""ResNet-50 trained by DistributedDataParallel, 32 images a GPU: ../resnet50/model.py on the GPUs of some nodes.

    memwall profile profiles/resnet50_ddp/model.py --mode training --cluster dgx-a100-80gb --world 64
"""

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

spec = spec_from_file_location("resnet50_model", Path(__file__).parents[1] / "resnet50" / "model.py")
resnet = sys.modules[spec.name] = module_from_spec(spec)
spec.loader.exec_module(resnet)

inputs, loss, optimizer = resnet.inputs, resnet.loss, resnet.optimizer


def model() -> nn.Module:
    device = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    net = resnet.ResNet50().to(device, memory_format=torch.channels_last)
    return DistributedDataParallel(net, device_ids=[device], gradient_as_bucket_view=True)
