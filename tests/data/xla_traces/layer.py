"""What the trace of a CPU in this folder is of: two steps of a layer, with the tracers of Python and of locks off."""

import jax
import jax.numpy as jnp


@jax.jit
def layer(x, w, b):
    return jax.nn.gelu(x @ w + b).sum(-1)


x, w, b = jnp.ones((64, 128)), jnp.ones((128, 256)), jnp.ones((256,))
layer(x, w, b).block_until_ready()
options = jax.profiler.ProfileOptions()
options.python_tracer_level, options.host_tracer_level = 0, 1
with jax.profiler.trace("out", profiler_options=options):
    for step in range(2):
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
            layer(x, w, b).block_until_ready()
