"""Private names of other libraries: the one place that spells them, where a renamed one costs a word.

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


def _places(rows: Mapping[str, str]) -> dict[str, str]:
    """Name here → ``module:attribute`` of tables as below: behind a module, or an attribute of one, the attributes that
    it has. ``name=attribute``, or ``name=`` of the module itself; ``_name`` is called ``name`` here."""
    found = {}
    for home, words in rows.items():
        for word in words.split():
            name, _, attribute = word.partition("=") if "=" in word else (word.strip("_()"), "", word)
            if name in found:
                raise ValueError(f"{name} has a place already")
            found[name] = f"{home}{'.' if ':' in home else ':'}{attribute}" if attribute else home
    return found


#: name here → ``module``, or ``module:attribute`` in it
PLACES: Mapping[str, str] = _places({
    # torch: trees of tensors, modes, operators
    "torch.utils._pytree": "TreeSpec tree_flatten tree_leaves tree_map tree_map_only tree_unflatten",
    "torch.utils._python_dispatch": "TorchDispatchMode dispatch_modes=_get_current_dispatch_mode_stack",
    "torch.overrides": "pop_function_mode=_pop_mode push_function_mode=_push_mode",
    "torch:_C":
        "function_mode_count=_len_torch_function_stack dispatch_mode_count=_len_torch_dispatch_stack"
        " dispatch_mode=_get_dispatch_mode DispatchModeKey=_TorchDispatchModeKey _DisableTorchDispatch"
        " plain_torch_dispatch=_disabled_torch_dispatch_impl DispatchKey DispatchKeySet _ExcludeDispatchKeyGuard"
        " include_dispatch_key=_dispatch_tls_set_dispatch_key_included has_kernel=_dispatch_has_kernel_for_dispatch_key"
        " schema_with_overload=_get_schema schemas_of_operator=_jit_get_schemas_for_operator"
        " _are_functorch_transforms_active backward_task=_current_graph_task_id backward_node=_current_autograd_node"
        " TensorBase storage_use_count=_storage_Use_Count privateuse1_backend_name=_get_privateuse1_backend_name"
        " conv_memory_format=_conv_determine_backend_memory_format accelerator=_get_accelerator"
        " accelerator_kind=_accelerator_getAccelerator accelerator_stream=_accelerator_getStream"
        " set_accelerator_stream=_accelerator_setStream accelerator_index=_accelerator_getDeviceIndex"
        " exchange_accelerator=_accelerator_exchangeDevice maybe_exchange_accelerator=_accelerator_maybeExchangeDevice"
        " set_accelerator_index=_accelerator_setDeviceIndex synchronize_accelerator=_accelerator_synchronizeDevice"
        " empty_host_cache=_accelerator_emptyHostCache"
        " is_accelerator_allocator_initialized=_accelerator_isAllocatorInitialized"
        " accelerator_memory=_accelerator_getMemoryInfo math_sdp_enabled=_get_math_sdp_enabled"
        " flash_sdp_enabled=_get_flash_sdp_enabled mem_efficient_sdp_enabled=_get_mem_efficient_sdp_enabled"
        " cudnn_sdp_enabled=_get_cudnn_sdp_enabled sdp_priority_order=_get_sdp_priority_order c10d=_distributed_c10d",
    "torch._ops": "HigherOrderOperator OpOverload",
    "torch._decomp": "core_aten_decompositions decomposition_table",
    "torch._prims_common": "suggest_memory_format",
    "torch._meta_registrations": "meta_grouped_mm",
    "torch._refs": "refs=",
    "torch._subclasses.fake_tensor": "FakeTensor FakeTensorMode fake_tensor=",
    # torch: operators with a Python body
    "torch._library.custom_ops": "OPDEFS",
    "torch._library.triton": "triton_ops_to_kernels set_wrap_triton_enabled",
    "torch.library": "_scoped_library",
    "torch._higher_order_ops.out_dtype": "out_dtype out_dtype_fallback",
    "torch._higher_order_ops.associative_scan": "associative_scan_op",
    "torch._higher_order_ops.flex_attention": "math_attention",
    "torch._higher_order_ops.map": "map_impl",
    "torch._higher_order_ops.scan": "generic_scan scan_op",
    "torch._higher_order_ops.triton_kernel_wrap": "triton_kernel_wrapper_mutation_dense",
    "torch._higher_order_ops.while_loop": "while_loop_op",
    "torch.nn.attention.flex_attention":
        "flex_validate_device=_validate_device flex_compile_debug=_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG",
    # torch: operators as torch calls them
    "torch":
        "_batch_norm_impl_index _grouped_mm _int_mm _scaled_grouped_mm _scaled_mm _to_functional_tensor"
        " _from_functional_tensor _is_functional_tensor _enable_functionalization _disable_functionalization"
        " sync_functional_tensor=_sync",
    # torch: autograd
    "torch:_C._functorch": "is_functorch_wrapped_tensor unwrapped=get_unwrapped",
    "torch:_C._autograd": "saved_tensors_hooks=_top_saved_tensors_default_hooks next_sequence_number=_get_sequence_nr",
    "torch.autograd": "_engine_run_backward",
    # torch: tensors, storages, devices
    "torch._C": "torch_c=",
    "torch:Tensor": "_make_subclass",
    "torch:_C._nn": "_parse_to",
    "torch.cuda": "_is_in_bad_fork _exchange_device _maybe_exchange_device _lazy_init _lazy_call cuda_sleep=_sleep",
    "torch.cuda.memory": "_record_memory_history",
    # torch: attention
    "torch.nested._internal.sdpa":
        "nested_sdpa= _select_sdp_backend _can_use_flash_sdpa_jagged _can_use_efficient_sdpa_jagged"
        " _is_computing_meta_flops",
    # torch: modules and optimizers
    "torch.nn.modules.conv": "_ConvNd",
    "torch.amp:GradScaler": "_maybe_opt_step",
    "torch.utils._foreach_utils":
        "foreach_utils= fused_kernels_devices=_get_fused_kernels_supported_devices"
        " foreach_kernels_devices=_get_foreach_kernels_supported_devices",
    "torch.optim.optimizer": "capturable_devices=_get_capturable_supported_devices",
    # torch.distributed
    "torch.testing._internal.distributed.fake_pg": "FakeStore",
    "torch.distributed._functional_collectives": "AsyncCollectiveTensor",
    "torch.distributed.distributed_c10d": "_resolve_process_group",
    "torch.distributed.device_mesh:DeviceMesh": "setup_world_group=_setup_world_group_and_device",
    "torch.nn.parallel.distributed": "verify_param_shapes=_verify_param_shape_across_processes _sync_module_states",
    "torch.distributed":
        "bucket_assignment=_compute_bucket_assignment_by_size first_bucket_bytes=_DEFAULT_FIRST_BUCKET_BYTES",
    "torch.distributed._composable_state": "module_state=_get_module_state _insert_module_state",
    "torch.distributed.tensor._sharding_prop": "sharding_prop=",
    "torch.distributed.tensor._sharding_prop:ShardingPropagator": "tensor_meta=_propagate_tensor_meta_non_cached",
    "torch.distributed.tensor.debug": "_clear_sharding_prop_cache",
    "torch.distributed.pipelining.stage": "_PipelineStageBase",
    "torch.distributed.pipelining.schedules": "_PipelineScheduleRuntime",
    "torch.distributed.pipelining.stage:PipelineStage": "_warmup_forward_vote _warmup_backward_result",
    # torch.distributed.fsdp
    "torch.distributed.fsdp._fully_shard._fsdp_collectives": "fsdp_collectives= _get_device_handle",
    "torch.distributed.fsdp._fully_shard._fsdp_param": "_chunk_with_empty fsdp_param=",
    "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup": "refuse_meta=_validate_no_meta_params",
    "torch.distributed.fsdp._common_utils": "_FSDPDeviceHandle",
    "torch.distributed.fsdp._flat_param": "flat_param= _data_ptr_allocated _storage_size_allocated",
    "torch.distributed.fsdp._init_utils":
        "flat_init= _init_device_handle device_from_device_id=_get_device_from_device_id"
        " compute_device=_get_compute_device _need_to_materialize_module _sync_module_params_and_buffers",
    # torch._dynamo
    "torch._dynamo": "dynamo=",
    "torch._dynamo.utils": "dynamo_counters=counters",
    "torch._dynamo.callback": "dynamo_callback_handler=callback_handler",
    "torch._dynamo.device_interface": "dynamo_device_interface= _device_initialized",
    "torch._dynamo.eval_frame": "dynamo_eval_frame=",
    "torch:_C._dynamo": "dynamo_frames=eval_frame",
    "torch:_C._dynamo.eval_frame": "_FrameAction _FrameExecStrategy",
    "torch._dynamo.symbolic_convert": "InstructionTranslatorBase",
    "torch._dynamo.trace_rules": "dynamo_trace_rules=",
    "torch.utils._sympy.functions": "sympy_functions=",
    # torch._inductor
    "torch._functorch": "functorch=",
    "torch._inductor.cudagraph_trees": "cudagraph_trees=",
    "torch._inductor": "inductor=",
    "torch._functorch.partitioners": "min_cut_partition=min_cut_rematerialization_partition",
    "torch.fx._lazy_graph_module": "_use_lazy_graph_module",
    "torch._inductor.compile_fx": "inductor_compile_fx= _recursive_joint_graph_passes",
    "torch._inductor.config": "inductor_config=",
    "torch._inductor.ir": "inductor_ir=",
    "torch._inductor.fx_passes.joint_graph": "inductor_joint_graph=",
    "torch._inductor.lowering": "inductor_lowering=",
    "torch._inductor.fx_passes.pad_mm": "inductor_pad_mm=",
    "torch._inductor.fx_passes.post_grad": "inductor_post_grad=",
    "torch._inductor.scheduler": "inductor_scheduler= InductorScheduler=Scheduler WhyNoFuse",
    "torch._inductor.codegen.triton": "inductor_triton= TritonOverrides TritonScheduling",
    "torch._inductor.utils": "inductor_utils= BoxedBool fused_kernel_name=get_fused_kernel_name",
    "torch._inductor.autoheuristic.autoheuristic": "AutoHeuristic",
    "torch._inductor.autoheuristic.autoheuristic_utils": "pad_mm_operations pad_mm_precondition",
    "torch._inductor.runtime.hints": "DeviceProperties",
    "torch._inductor.graph": "GraphLowering",
    "torch._inductor.virtualized": "InductorVirtualized=V",
    "torch._inductor.codegen.triton:TritonOverrides": "_can_use_4x_random",
    "torch._inductor.decomposition": "select_decomp_table",
    "torch._utils_internal": "torch_internal=",
    "torch.utils._triton": "triton_questions=",
    "triton._C.libtriton": "triton_ir=ir",
    "triton.compiler.compiler": "ASTSource make_backend",
    "triton.runtime.jit": "create_function_from_signature",
    # transformers
    "transformers.modeling_utils:PreTrainedModel": "_initialize_weights",
    "transformers.masking_utils": "ignore_bidirectional_mask=_ignore_bidirectional_mask_sdpa",
    "transformers.models.recurrent_gemma.modeling_recurrent_gemma:RecurrentGemmaRglru":
        "recurrent_gemma_scan=_rnn_scan",
    # Python
    "copy": "copy_reconstruct=_reconstruct _deepcopy_dispatch",
})  # fmt: skip

#: name here → ``module:owner.attribute``, with ``()`` behind a method; the owner is the class of the objects that have
#: it, or the function that sets it
ATTRIBUTES: Mapping[str, str] = _places({
    # tensors and storages
    "torch:UntypedStorage": "_cdata",
    "torch:Tensor":
        "_backward_hooks _post_accumulate_grad_hooks sparse_indices=_indices() sparse_values=_values()"
        " is_view=_is_view()",
    "torch.distributed.tensor:DTensor": "_local_tensor dtensor_spec=_spec",
    # operators
    "torch._ops:OpOverload":
        "_schema overload_name=_overloadname can_decompose=_can_decompose() op_with_key=_op_dk() _dispatch_cache",
    "torch._library.custom_ops:CustomOpDef": "_init_fn",
    "torch.library:Library": "destroy_library=_destroy()",
    "torch.autograd.graph:Node": "sequence_number=_sequence_nr()",
    # modules
    "torch.nn:Module":
        "_parameters _buffers submodules=_modules _forward_hooks _forward_pre_hooks compiled_call=_compiled_call_impl",
    "torch.nn.modules.lazy:LazyModuleMixin": "_initialize_hook infer_parameters=_infer_parameters()",
    "torch._dynamo.eval_frame:OptimizedModule": "_orig_mod",
    "torch._dynamo.eval_frame:_TorchDynamoContext": "orig_callable=_torchdynamo_orig_callable",
    "torch.amp.autocast_mode:autocast": "autocast_enabled=_enabled autocast_cache_enabled=_cache_enabled",
    # FullyShardedDataParallel
    "torch.distributed.fsdp._init_utils:_init_core_state": "_exec_order_data _debug_level",
    "torch.distributed.fsdp._common_utils:_FSDPState": "_is_root _device_handle flat_handle=_handle",
    "torch.distributed.fsdp._exec_order_utils:_ExecOrderData": "_backward_prefetch_limit _forward_prefetch_limit",
    "torch.distributed.fsdp._flat_param:FlatParamHandle":
        "handle_device=_device_handle _use_orig_params use_sharded_views=_use_sharded_views()",
    "torch.distributed.fsdp._flat_param:FlatParameter": "flat_shapes=_shapes flat_parts=_params",
    # fully_shard
    "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState": "_fsdp_param_group _fsdp_param_groups",
    "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam": "_module_info _sharding_spec _sharded_param_data",
    # pipelines
    "torch.distributed.pipelining.schedules:PipelineScheduleSingle": "pipeline_stage=_stage",
    "torch.distributed.pipelining.schedules:PipelineScheduleMulti": "pipeline_stages=_stages",
    "torch.distributed.pipelining.schedules:_PipelineSchedule": "microbatches=_n_microbatches",
    "torch.distributed.pipelining.stage:PipelineStage": "_user_meta",
    # Inductor and Triton
    "torch._inductor.graph:GraphLowering": "update_scheduler=_update_scheduler()",
    "torch._inductor.scheduler:SchedulerNode": "loop_body=_body",
    "triton.runtime.driver:DriverConfig": "active_driver=_active default_driver=_default",
    "triton.runtime.jit:JITFunction": "pack_args=_pack_args()",
    # transformers
    "transformers.modeling_utils:PreTrainedModel": "from_config=_from_config()",
})  # fmt: skip

#: names that not all supported versions have, and which: the code asks whether they are there
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
