"""Programs of several GPUs seen from one rank.

``distributed`` has process groups and what is sent in them, ``sent_values`` its numbers; ``data_parallel`` modules
wrapped by DistributedDataParallel and ``fully_shard``, ``flat_shards`` FullyShardedDataParallel, ``dtensors`` DTensor;
``pipelines`` stages of ``torch.distributed.pipelining``; ``outlines`` which ranks are alike.
"""
