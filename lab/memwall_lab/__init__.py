"""memwall against what others measured.

In: tables of measured times of other projects, identified by their columns (``tables``). Out: samples, which memwall
models and scores (:mod:`memwall.bench.accuracy`): kernels, whole modules (``modules``), collectives
(``collectives``), training steps (``training``) and deployments of language models (``deployments``). Where this
package is installed ``memwall accuracy`` reads these tables too. Beside it lie the fits of constants (``fits``), the
benchmarks and the scripts that write ``reports/``.
"""
