"""Tables of measured times, identified by their columns.

Your own table needs the columns of one of these kinds; extra columns are ignored. Times are milliseconds.

- products: gpu, framework, dtype (bfloat16, float16, fp8), m, n, k, latency_ms; kernels in a CUDA graph, weights cold
- quantised products: gpu, framework (trtllm, vllm, sglang), kernel_source, gemm_dtype (a scheme of
  :mod:`memwall.ops.quantised`), m, n, k, latency_ms
- fused attention: gpu, phase (prefill, decode), batch, isl, step, heads, kv_heads, head_dim, dtype, latency_ms
- experts of a mixture: gpu, framework (vllm, trtllm, sglang), kernel_source, moe_dtype, num_tokens, hidden_size,
  inter_size, topk, num_experts, moe_tp_size, moe_ep_size, distribution (balanced, power_law_1.2), latency_ms
- latent attention: gpu, framework, kind (context_mla, generation_mla, mla_bmm), op_name, kernel_source, mla_dtype,
  kv_cache_dtype, bmm_dtype, num_heads (of one GPU), batch_size, isl, step, num_tokens, latency_ms
- float32 ops in eager calls: op (linear, bmm, add, mul, relu, gelu, softmax, ln, ...), gpu, b, m, k, n, h, latency_ms
- float32 convolutions in eager calls: gpu, n, cin, cout, ksize, hw, stride, padding, latency_ms
- layers of an LLM: gpu, op, num_tokens, tp, n_head, n_kv_head, n_embd, n_ffn, vocab, gated_mlp, median_ms
- collectives: gpu (or the name of a cluster), lib, op, dtype, n_gpus, devices_per_node (may be empty), bytes, time_us;
  sizes as nccl-tests define them (:mod:`memwall_lab.tables.collectives`)
- all-reduce from Python: network, num_workers, size (bytes), median_ms, devices_per_node
- cuBLAS and cuDNN loops: DeepBench's columns (:mod:`memwall_lab.tables.library`)
- encoder layers of BERT-large: what, config ("... b8 s512"), implementation (PyTorch), ms
- rates: gpu, benchmark, measured_GBps; gpu, dtype, measured_tflops, shape_mnk
- whole modules: gpu, way (eager, compile_cudagraphs), module, mean_ms, std_ms, trials; their profiles in an archive
  (:mod:`memwall_lab.tables.kernelbench`)
- training steps on many GPUs: the columns of vTrain, calculon, Megatron-LM, llm-foundry and MaxText
  (:mod:`memwall_lab.tables.training`)
- deployments of language models: latencies or throughput (:mod:`memwall_lab.tables.deployments`)
- Triton layers: Liger-Kernel's columns (:mod:`memwall_lab.tables.liger`)
- fused attention and norms of cuDNN's front end (:mod:`memwall_lab.tables.cudnn`); attention of encoders in servers
  (:mod:`memwall_lab.tables.aisimulate`)
- whole networks as NVIDIA timed them (:mod:`memwall_lab.tables.nvidia`)
- whole networks: timm's, U-Nets of Stable Diffusion, torchvision's (:mod:`memwall_lab.tables.networks`)
"""

from memwall.bench.accuracy.kinds import TableKind
from memwall_lab.tables import (
    aic_kernels,
    aic_modules,
    aiconfigurator,
    aisimulate,
    collectives,
    cudnn,
    deployments,
    encoder,
    kernelbench,
    library,
    liger,
    networks,
    neusight,
    nvidia,
    serving,
    training,
    vidur,
)

#: Kinds of tables; the first whose columns are all present is used.
TABLES: tuple[TableKind, ...] = (
    aiconfigurator.ATTENTION, aiconfigurator.GEMM, aiconfigurator.QUANTISED, serving.EXPERTS, serving.LATENT,
    neusight.CONV, neusight.OPS, vidur.OPS, collectives.NCCL, collectives.ALL_REDUCE, library.CONV, library.GEMM,
    liger.OPS, liger.PAIRS, library.BANDWIDTH,
    library.PRODUCTS, encoder.ENCODER, kernelbench.MODULES, training.VTRAIN, training.CALCULON, training.MEGATRON,
    training.LLM_FOUNDRY, training.MAXTEXT,
    training.BRIDGE, deployments.LATENCIES, deployments.THROUGHPUT, cudnn.ATTENTION, cudnn.NORMS,
    aisimulate.ENCODERS, nvidia.FASTER_TRANSFORMER, nvidia.EXAMPLES,
    aic_kernels.DELTA, aic_kernels.MAMBA, aic_kernels.SPARSE, aic_kernels.CASTS, aic_kernels.DEEPGEMM,
    aic_modules.MODULES,
    networks.TIMM, networks.DIFFUSERS, networks.CLASSICS,
)  # fmt: skip
