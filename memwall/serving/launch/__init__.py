"""The command line that starts a server ↔ the options of ``memwall serve``.

In goes what people run: ``vllm serve``, ``sglang.launch_server`` or ``trtllm-serve`` as words, a script, a Dockerfile,
or a manifest of Kubernetes or Compose (:mod:`.command` finds the command in it). Out comes a :class:`ServerLaunch`: the
options of the server, and for each flag what it sets, or why it sets nothing. :func:`launch_line` goes the other way.

:mod:`.flags` has what a flag is; :mod:`.vllm`, :mod:`.sglang` and :mod:`.trtllm` a table of flags each, and what
several of them say together; :mod:`.reading` and :mod:`.writing` serve all three.
"""

from memwall.serving.launch.reading import ServerLaunch, read_launch
from memwall.serving.launch.writing import launch_line, options_of_point

__all__ = ["ServerLaunch", "launch_line", "options_of_point", "read_launch"]
