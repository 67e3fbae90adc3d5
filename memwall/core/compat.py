"""Private names of other libraries: the one place that spells them, where a renamed one costs a line.

``compat.tree_map`` is what a library has there, ``compat.buffers(module)`` reads a private attribute or calls a method,
and ``compat.name_of("lazy_init")`` is what the library calls it, to be replaced or looked for. Whatever is asked for is
looked up then: importing this module imports nothing. Operators (``torch.ops.aten._softmax``) stand in the tables of
:mod:`memwall.ops`, since their names are what traces and records hold.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from memwall.core.errors import MissingError

#: name here → ``module``, or ``module:attribute`` in it
PLACES: Mapping[str, str] = {
    # torch: trees of tensors, modes, operators
    "TreeSpec": "torch.utils._pytree:TreeSpec",
    "tree_flatten": "torch.utils._pytree:tree_flatten",
    "tree_leaves": "torch.utils._pytree:tree_leaves",
    "tree_map": "torch.utils._pytree:tree_map",
    "tree_map_only": "torch.utils._pytree:tree_map_only",
    "tree_unflatten": "torch.utils._pytree:tree_unflatten",
    "TorchDispatchMode": "torch.utils._python_dispatch:TorchDispatchMode",
    "dispatch_modes": "torch.utils._python_dispatch:_get_current_dispatch_mode_stack",
    "pop_function_mode": "torch.overrides:_pop_mode",
    "push_function_mode": "torch.overrides:_push_mode",
    "function_mode_count": "torch:_C._len_torch_function_stack",
    "dispatch_mode_count": "torch:_C._len_torch_dispatch_stack",
    "dispatch_mode": "torch:_C._get_dispatch_mode",
    "DispatchModeKey": "torch:_C._TorchDispatchModeKey",
    "DisableTorchDispatch": "torch:_C._DisableTorchDispatch",
    "plain_torch_dispatch": "torch:_C._disabled_torch_dispatch_impl",
    "DispatchKey": "torch:_C.DispatchKey",
    "DispatchKeySet": "torch:_C.DispatchKeySet",
    "ExcludeDispatchKeyGuard": "torch:_C._ExcludeDispatchKeyGuard",
    "include_dispatch_key": "torch:_C._dispatch_tls_set_dispatch_key_included",
    "has_kernel": "torch:_C._dispatch_has_kernel_for_dispatch_key",
    "HigherOrderOperator": "torch._ops:HigherOrderOperator",
    "OpOverload": "torch._ops:OpOverload",
    "schema_with_overload": "torch:_C._get_schema",
    "schemas_of_operator": "torch:_C._jit_get_schemas_for_operator",
    "core_aten_decompositions": "torch._decomp:core_aten_decompositions",
    "decomposition_table": "torch._decomp:decomposition_table",
    "suggest_memory_format": "torch._prims_common:suggest_memory_format",
    "meta_grouped_mm": "torch._meta_registrations:meta_grouped_mm",
    "refs": "torch._refs",
    "FakeTensor": "torch._subclasses.fake_tensor:FakeTensor",
    "FakeTensorMode": "torch._subclasses.fake_tensor:FakeTensorMode",
    "fake_tensor": "torch._subclasses.fake_tensor",
    # torch: operators with a Python body
    "OPDEFS": "torch._library.custom_ops:OPDEFS",
    "triton_ops_to_kernels": "torch._library.triton:triton_ops_to_kernels",
    "set_wrap_triton_enabled": "torch._library.triton:set_wrap_triton_enabled",
    "scoped_library": "torch.library:_scoped_library",
    "out_dtype": "torch._higher_order_ops.out_dtype:out_dtype",
    "out_dtype_fallback": "torch._higher_order_ops.out_dtype:out_dtype_fallback",
    "associative_scan_op": "torch._higher_order_ops.associative_scan:associative_scan_op",
    "math_attention": "torch._higher_order_ops.flex_attention:math_attention",
    "map_impl": "torch._higher_order_ops.map:map_impl",
    "generic_scan": "torch._higher_order_ops.scan:generic_scan",
    "scan_op": "torch._higher_order_ops.scan:scan_op",
    "while_loop_op": "torch._higher_order_ops.while_loop:while_loop_op",
    "flex_validate_device": "torch.nn.attention.flex_attention:_validate_device",
    "flex_compile_debug": "torch.nn.attention.flex_attention:_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG",
    # torch: operators as torch calls them
    "batch_norm_impl_index": "torch:_batch_norm_impl_index",
    "grouped_mm": "torch:_grouped_mm",
    "int_mm": "torch:_int_mm",
    "scaled_grouped_mm": "torch:_scaled_grouped_mm",
    "scaled_mm": "torch:_scaled_mm",
    # torch: autograd
    "are_functorch_transforms_active": "torch:_C._are_functorch_transforms_active",
    "is_functorch_wrapped_tensor": "torch:_C._functorch.is_functorch_wrapped_tensor",
    "unwrapped": "torch:_C._functorch.get_unwrapped",
    "saved_tensors_hooks": "torch:_C._autograd._top_saved_tensors_default_hooks",
    "backward_task": "torch:_C._current_graph_task_id",
    "backward_node": "torch:_C._current_autograd_node",
    "next_sequence_number": "torch:_C._autograd._get_sequence_nr",
    "engine_run_backward": "torch.autograd:_engine_run_backward",
    "to_functional_tensor": "torch:_to_functional_tensor",
    "from_functional_tensor": "torch:_from_functional_tensor",
    "is_functional_tensor": "torch:_is_functional_tensor",
    "enable_functionalization": "torch:_enable_functionalization",
    "disable_functionalization": "torch:_disable_functionalization",
    "sync_functional_tensor": "torch:_sync",
    # torch: tensors, storages, devices
    "torch_c": "torch._C",
    "TensorBase": "torch:_C.TensorBase",
    "storage_use_count": "torch:_C._storage_Use_Count",
    "make_subclass": "torch:Tensor._make_subclass",
    "parse_to": "torch:_C._nn._parse_to",
    "privateuse1_backend_name": "torch:_C._get_privateuse1_backend_name",
    "conv_memory_format": "torch:_C._conv_determine_backend_memory_format",
    "accelerator": "torch:_C._get_accelerator",
    "accelerator_kind": "torch:_C._accelerator_getAccelerator",
    "accelerator_stream": "torch:_C._accelerator_getStream",
    "set_accelerator_stream": "torch:_C._accelerator_setStream",
    "accelerator_index": "torch:_C._accelerator_getDeviceIndex",
    "exchange_accelerator": "torch:_C._accelerator_exchangeDevice",
    "maybe_exchange_accelerator": "torch:_C._accelerator_maybeExchangeDevice",
    "set_accelerator_index": "torch:_C._accelerator_setDeviceIndex",
    "synchronize_accelerator": "torch:_C._accelerator_synchronizeDevice",
    "empty_host_cache": "torch:_C._accelerator_emptyHostCache",
    "is_accelerator_allocator_initialized": "torch:_C._accelerator_isAllocatorInitialized",
    "accelerator_memory": "torch:_C._accelerator_getMemoryInfo",
    "is_in_bad_fork": "torch.cuda:_is_in_bad_fork",
    "exchange_device": "torch.cuda:_exchange_device",
    "maybe_exchange_device": "torch.cuda:_maybe_exchange_device",
    "lazy_init": "torch.cuda:_lazy_init",
    "lazy_call": "torch.cuda:_lazy_call",
    "record_memory_history": "torch.cuda.memory:_record_memory_history",
    "cuda_sleep": "torch.cuda:_sleep",
    # torch: attention
    "math_sdp_enabled": "torch:_C._get_math_sdp_enabled",
    "flash_sdp_enabled": "torch:_C._get_flash_sdp_enabled",
    "mem_efficient_sdp_enabled": "torch:_C._get_mem_efficient_sdp_enabled",
    "cudnn_sdp_enabled": "torch:_C._get_cudnn_sdp_enabled",
    "sdp_priority_order": "torch:_C._get_sdp_priority_order",
    "nested_sdpa": "torch.nested._internal.sdpa",
    "select_sdp_backend": "torch.nested._internal.sdpa:_select_sdp_backend",
    "can_use_flash_sdpa_jagged": "torch.nested._internal.sdpa:_can_use_flash_sdpa_jagged",
    "can_use_efficient_sdpa_jagged": "torch.nested._internal.sdpa:_can_use_efficient_sdpa_jagged",
    "is_computing_meta_flops": "torch.nested._internal.sdpa:_is_computing_meta_flops",
    # torch: modules and optimizers
    "ConvNd": "torch.nn.modules.conv:_ConvNd",
    "maybe_opt_step": "torch.amp:GradScaler._maybe_opt_step",
    "foreach_utils": "torch.utils._foreach_utils",
    "fused_kernels_devices": "torch.utils._foreach_utils:_get_fused_kernels_supported_devices",
    "foreach_kernels_devices": "torch.utils._foreach_utils:_get_foreach_kernels_supported_devices",
    "capturable_devices": "torch.optim.optimizer:_get_capturable_supported_devices",
    # torch.distributed
    "FakeStore": "torch.testing._internal.distributed.fake_pg:FakeStore",
    "c10d": "torch:_C._distributed_c10d",
    "AsyncCollectiveTensor": "torch.distributed._functional_collectives:AsyncCollectiveTensor",
    "resolve_process_group": "torch.distributed.distributed_c10d:_resolve_process_group",
    "setup_world_group": "torch.distributed.device_mesh:DeviceMesh._setup_world_group_and_device",
    "verify_param_shapes": "torch.nn.parallel.distributed:_verify_param_shape_across_processes",
    "sync_module_states": "torch.nn.parallel.distributed:_sync_module_states",
    "bucket_assignment": "torch.distributed:_compute_bucket_assignment_by_size",
    "first_bucket_bytes": "torch.distributed:_DEFAULT_FIRST_BUCKET_BYTES",
    "module_state": "torch.distributed._composable_state:_get_module_state",
    "insert_module_state": "torch.distributed._composable_state:_insert_module_state",
    "sharding_prop": "torch.distributed.tensor._sharding_prop",
    "tensor_meta": "torch.distributed.tensor._sharding_prop:ShardingPropagator._propagate_tensor_meta_non_cached",
    "clear_sharding_prop_cache": "torch.distributed.tensor.debug:_clear_sharding_prop_cache",
    "PipelineStageBase": "torch.distributed.pipelining.stage:_PipelineStageBase",
    "PipelineScheduleRuntime": "torch.distributed.pipelining.schedules:_PipelineScheduleRuntime",
    "warmup_forward_vote": "torch.distributed.pipelining.stage:PipelineStage._warmup_forward_vote",
    "warmup_backward_result": "torch.distributed.pipelining.stage:PipelineStage._warmup_backward_result",
    # torch.distributed.fsdp
    "fsdp_collectives": "torch.distributed.fsdp._fully_shard._fsdp_collectives",
    "get_device_handle": "torch.distributed.fsdp._fully_shard._fsdp_collectives:_get_device_handle",
    "chunk_with_empty": "torch.distributed.fsdp._fully_shard._fsdp_param:_chunk_with_empty",
    "fsdp_param": "torch.distributed.fsdp._fully_shard._fsdp_param",
    "refuse_meta": "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup._validate_no_meta_params",
    "FSDPDeviceHandle": "torch.distributed.fsdp._common_utils:_FSDPDeviceHandle",
    "flat_param": "torch.distributed.fsdp._flat_param",
    "data_ptr_allocated": "torch.distributed.fsdp._flat_param:_data_ptr_allocated",
    "storage_size_allocated": "torch.distributed.fsdp._flat_param:_storage_size_allocated",
    "flat_init": "torch.distributed.fsdp._init_utils",
    "init_device_handle": "torch.distributed.fsdp._init_utils:_init_device_handle",
    "device_from_device_id": "torch.distributed.fsdp._init_utils:_get_device_from_device_id",
    "compute_device": "torch.distributed.fsdp._init_utils:_get_compute_device",
    "need_to_materialize_module": "torch.distributed.fsdp._init_utils:_need_to_materialize_module",
    "sync_module_params_and_buffers": "torch.distributed.fsdp._init_utils:_sync_module_params_and_buffers",
    # torch._dynamo
    "dynamo": "torch._dynamo",
    "dynamo_counters": "torch._dynamo.utils:counters",
    "dynamo_callback_handler": "torch._dynamo.callback:callback_handler",
    "dynamo_device_interface": "torch._dynamo.device_interface",
    "dynamo_eval_frame": "torch._dynamo.eval_frame",
    "dynamo_frames": "torch:_C._dynamo.eval_frame",
    "FrameAction": "torch:_C._dynamo.eval_frame._FrameAction",
    "FrameExecStrategy": "torch:_C._dynamo.eval_frame._FrameExecStrategy",
    "InstructionTranslatorBase": "torch._dynamo.symbolic_convert:InstructionTranslatorBase",
    "dynamo_trace_rules": "torch._dynamo.trace_rules",
    "device_initialized": "torch._dynamo.device_interface:_device_initialized",
    "sympy_functions": "torch.utils._sympy.functions",
    # torch._inductor
    "functorch": "torch._functorch",
    "cudagraph_trees": "torch._inductor.cudagraph_trees",
    "inductor": "torch._inductor",
    "min_cut_partition": "torch._functorch.partitioners:min_cut_rematerialization_partition",
    "use_lazy_graph_module": "torch.fx._lazy_graph_module:_use_lazy_graph_module",
    "inductor_compile_fx": "torch._inductor.compile_fx",
    "recursive_joint_graph_passes": "torch._inductor.compile_fx:_recursive_joint_graph_passes",
    "inductor_config": "torch._inductor.config",
    "inductor_ir": "torch._inductor.ir",
    "inductor_joint_graph": "torch._inductor.fx_passes.joint_graph",
    "inductor_lowering": "torch._inductor.lowering",
    "inductor_pad_mm": "torch._inductor.fx_passes.pad_mm",
    "inductor_post_grad": "torch._inductor.fx_passes.post_grad",
    "inductor_scheduler": "torch._inductor.scheduler",
    "inductor_triton": "torch._inductor.codegen.triton",
    "inductor_utils": "torch._inductor.utils",
    "AutoHeuristic": "torch._inductor.autoheuristic.autoheuristic:AutoHeuristic",
    "pad_mm_operations": "torch._inductor.autoheuristic.autoheuristic_utils:pad_mm_operations",
    "pad_mm_precondition": "torch._inductor.autoheuristic.autoheuristic_utils:pad_mm_precondition",
    "BoxedBool": "torch._inductor.utils:BoxedBool",
    "DeviceProperties": "torch._inductor.runtime.hints:DeviceProperties",
    "GraphLowering": "torch._inductor.graph:GraphLowering",
    "InductorVirtualized": "torch._inductor.virtualized:V",
    "TritonOverrides": "torch._inductor.codegen.triton:TritonOverrides",
    "TritonScheduling": "torch._inductor.codegen.triton:TritonScheduling",
    "WhyNoFuse": "torch._inductor.scheduler:WhyNoFuse",
    "can_use_4x_random": "torch._inductor.codegen.triton:TritonOverrides._can_use_4x_random",
    "fused_kernel_name": "torch._inductor.utils:get_fused_kernel_name",
    "select_decomp_table": "torch._inductor.decomposition:select_decomp_table",
    "torch_internal": "torch._utils_internal",
    "triton_questions": "torch.utils._triton",
    # transformers
    "initialize_weights": "transformers.modeling_utils:PreTrainedModel._initialize_weights",
    "ignore_bidirectional_mask": "transformers.masking_utils:_ignore_bidirectional_mask_sdpa",
    "recurrent_gemma_scan":
        "transformers.models.recurrent_gemma.modeling_recurrent_gemma:RecurrentGemmaRglru._rnn_scan",
    # Python
    "copy_reconstruct": "copy:_reconstruct",
    "deepcopy_dispatch": "copy:_deepcopy_dispatch",
}  # fmt: skip

#: name here → ``module:owner.attribute``, with ``()`` behind a method; the owner is the class of the objects that have
#: it, or the function that sets it
ATTRIBUTES: Mapping[str, str] = {
    # tensors and storages
    "cdata": "torch:UntypedStorage._cdata",
    "backward_hooks": "torch:Tensor._backward_hooks",
    "post_accumulate_grad_hooks": "torch:Tensor._post_accumulate_grad_hooks",
    "sparse_indices": "torch:Tensor._indices()",
    "sparse_values": "torch:Tensor._values()",
    "is_view": "torch:Tensor._is_view()",
    "local_tensor": "torch.distributed.tensor:DTensor._local_tensor",
    "dtensor_spec": "torch.distributed.tensor:DTensor._spec",
    # operators
    "schema": "torch._ops:OpOverload._schema",
    "overload_name": "torch._ops:OpOverload._overloadname",
    "can_decompose": "torch._ops:OpOverload._can_decompose()",
    "op_with_key": "torch._ops:OpOverload._op_dk()",
    "dispatch_cache": "torch._ops:OpOverload._dispatch_cache",
    "init_fn": "torch._library.custom_ops:CustomOpDef._init_fn",
    "destroy_library": "torch.library:Library._destroy()",
    "sequence_number": "torch.autograd.graph:Node._sequence_nr()",
    # modules
    "parameters": "torch.nn:Module._parameters",
    "buffers": "torch.nn:Module._buffers",
    "submodules": "torch.nn:Module._modules",
    "forward_hooks": "torch.nn:Module._forward_hooks",
    "forward_pre_hooks": "torch.nn:Module._forward_pre_hooks",
    "compiled_call": "torch.nn:Module._compiled_call_impl",
    "initialize_hook": "torch.nn.modules.lazy:LazyModuleMixin._initialize_hook",
    "infer_parameters": "torch.nn.modules.lazy:LazyModuleMixin._infer_parameters()",
    "orig_mod": "torch._dynamo.eval_frame:OptimizedModule._orig_mod",
    "orig_callable": "torch._dynamo.eval_frame:_TorchDynamoContext._torchdynamo_orig_callable",
    "autocast_enabled": "torch.amp.autocast_mode:autocast._enabled",
    "autocast_cache_enabled": "torch.amp.autocast_mode:autocast._cache_enabled",
    # FullyShardedDataParallel
    "exec_order_data": "torch.distributed.fsdp._init_utils:_init_core_state._exec_order_data",
    "debug_level": "torch.distributed.fsdp._init_utils:_init_core_state._debug_level",
    "is_root": "torch.distributed.fsdp._common_utils:_FSDPState._is_root",
    "device_handle": "torch.distributed.fsdp._common_utils:_FSDPState._device_handle",
    "flat_handle": "torch.distributed.fsdp._common_utils:_FSDPState._handle",
    "backward_prefetch_limit": "torch.distributed.fsdp._exec_order_utils:_ExecOrderData._backward_prefetch_limit",
    "forward_prefetch_limit": "torch.distributed.fsdp._exec_order_utils:_ExecOrderData._forward_prefetch_limit",
    "handle_device": "torch.distributed.fsdp._flat_param:FlatParamHandle._device_handle",
    "use_orig_params": "torch.distributed.fsdp._flat_param:FlatParamHandle._use_orig_params",
    "use_sharded_views": "torch.distributed.fsdp._flat_param:FlatParamHandle._use_sharded_views()",
    "flat_shapes": "torch.distributed.fsdp._flat_param:FlatParameter._shapes",
    "flat_parts": "torch.distributed.fsdp._flat_param:FlatParameter._params",
    # fully_shard
    "fsdp_param_group": "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._fsdp_param_group",
    "fsdp_param_groups": "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._fsdp_param_groups",
    "module_info": "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam._module_info",
    "sharding_spec": "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam._sharding_spec",
    "sharded_param_data": "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam._sharded_param_data",
    # pipelines
    "pipeline_stage": "torch.distributed.pipelining.schedules:PipelineScheduleSingle._stage",
    "pipeline_stages": "torch.distributed.pipelining.schedules:PipelineScheduleMulti._stages",
    "microbatches": "torch.distributed.pipelining.schedules:_PipelineSchedule._n_microbatches",
    "user_meta": "torch.distributed.pipelining.stage:PipelineStage._user_meta",
    # Inductor and Triton
    "update_scheduler": "torch._inductor.graph:GraphLowering._update_scheduler()",
    "loop_body": "torch._inductor.scheduler:SchedulerNode._body",
    "active_driver": "triton.runtime.driver:DriverConfig._active",
    "default_driver": "triton.runtime.driver:DriverConfig._default",
    # transformers
    "from_config": "transformers.modeling_utils:PreTrainedModel._from_config()",
}

#: those that not all supported versions have, and which: the code asks whether they are there
SOME_VERSIONS: Mapping[str, str] = {
    "can_use_4x_random": "torch>=2.13",
    "fsdp_param_groups": "torch>=2.12",
    "ignore_bidirectional_mask": "transformers>=5",
    "user_meta": "torch>=2.13",
    "warmup_backward_result": "torch>=2.13",
    "warmup_forward_vote": "torch>=2.13",
}


def name_of(name: str) -> str:
    """What the library calls it: the full name of a module, the last part of any other."""
    place = PLACES.get(name) or ATTRIBUTES[name]
    module, _, path = place.removesuffix("()").partition(":")
    return path.rpartition(".")[2] or module


def resolve(place: str) -> Any:
    """What lies at a place, ``module`` or ``module:attribute``.

    Raises:
        MissingError: the library has nothing there.
    """
    module, _, path = place.partition(":")
    try:
        found = import_module(module)
        return operator.attrgetter(path)(found) if path else found
    except AttributeError as error:
        library = module.partition(".")[0]
        version = getattr(sys.modules.get(library), "__version__", "")
        raise MissingError(
            f"{library} {version} has no {place.replace(':', '.')}, which memwall uses:"
            f" install a version of {library} that memwall was tested with"
        ) from error


def _calling(method: str) -> Callable[..., Any]:
    return lambda thing, *args, **kwargs: getattr(thing, method)(*args, **kwargs)


def __getattr__(name: str) -> Any:
    if name in ATTRIBUTES:
        own = name_of(name)
        found: Any = _calling(own) if ATTRIBUTES[name].endswith("()") else operator.attrgetter(own)
    elif name in PLACES:
        found = resolve(PLACES[name])
        if ":" not in PLACES[name]:
            return found  # which something may stand in for
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found
