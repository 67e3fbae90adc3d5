"""``hf:FOLDER_OR_CONFIG_JSON``: any transformers model from its configuration; no weights, no network, no remote code.

Start with ``workload``. ``config`` reads the configuration, ``classes`` finds its model class (``architectures``, else
transformers' tables) and builds it, ``inputs`` makes what its processor would hand it (``asked``: the sizes,
``images``: their layouts, ``makers``: all else), ``labels`` what its head wants in training, ``quantized`` says what is
not modeled. No input is padded and none holds several packed sequences.
"""
