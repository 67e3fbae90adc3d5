"""A trace imports neither sympy nor the compiler, and code that uses them finds them."""

HEAVY = (
    "sympy",
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed.tensor",
    "torch.fx.experimental.symbolic_shapes",
)


def test_a_traced_training_step_imports_no_compiler(forks):
    code = f"""
        import sys, memwall
        for name in ("bert_layer", "resnet50"):
            memwall.profile(f"profiles/{{name}}/model.py", mode="training", gpu=["v100", "h100"], batch=1)
        print(*[name for name in {HEAVY} if name in sys.modules])
    """
    assert forks.printed(code).split() == []


def test_what_a_model_asks_of_the_real_modules_it_gets(forks):
    code = """
        import torch, memwall

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.up = torch.nn.Linear(8, 8)
            def forward(self, x):
                import sympy
                import torch._dynamo.config
                from torch._dynamo.utils import counters
                from torch.fx.experimental.symbolic_shapes import ShapeEnv, guard_or_false
                assert torch._dynamo.config.cache_size_limit and isinstance(sympy.Integer(3), sympy.Basic)
                assert guard_or_false(True) is True and ShapeEnv().create_unbacked_symint() is not None
                torch._dynamo.graph_break(msg="here")
                assert not torch.compiler.is_compiling() and not counters["frames"]
                return torch.compiler.disable(self.up)(x).sqrt()

        made = memwall.profile(Model(), (torch.randn(4, 8),), mode="training")
        import sys, torch._dynamo
        assert sys.modules["torch._dynamo"].__file__ and torch._dynamo is sys.modules["torch._dynamo"]
        assert torch._dynamo.utils is sys.modules["torch._dynamo.utils"]
        print(len(made.graph.ops) > 3)
    """
    assert forks.printed(code).split() == ["True"]


def test_the_compiler_works_after_a_trace(forks):
    code = """
        import torch, memwall

        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
        memwall.profile(model, (torch.randn(4, 8),), mode="training")
        optimizer = torch.optim.AdamW(model.parameters())

        @torch.compile(backend="eager")
        def step(x):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        before = [p.clone() for p in model.parameters()]
        step(torch.randn(4, 8))
        graph_breaks = torch._dynamo.utils.counters["graph_break"]
        print(any((a != b).any().item() for a, b in zip(before, model.parameters())))
        memwall.profile(model, (torch.randn(4, 8),), mode="training")
        step(torch.randn(4, 8))
        import sys
        print(type(sys.modules["torch._dynamo"]).__name__)
    """
    assert forks.printed(code).split() == ["True", "module"]


def test_a_symbolic_question_goes_to_the_real_function(forks):
    code = """
        from memwall.frontend.torch.process.light_imports import light_imports
        import torch
        with light_imports():
            from torch.fx.experimental.symbolic_shapes import guard_or_false, sym_and, sym_eq
            import sympy
            assert guard_or_false(True) and not sym_eq((2, 3), (2, 4)) and not sym_and(True, False)
            assert not isinstance(3, sympy.Basic)
            class Own(sympy.Basic): pass
            assert isinstance(Own(), sympy.Basic) and isinstance(sympy.Integer(3), sympy.Basic)
            from torch.fx.experimental.symbolic_shapes import ShapeEnv
            size = ShapeEnv().create_unbacked_symint()
            print(guard_or_false(size > 3), guard_or_false(size == size))
    """
    assert forks.printed(code).split() == ["False", "True"]


def test_neither_process_groups_nor_decompositions_load_a_compiler(forks):
    """A process group clears a cache of the compiler's rules if there are any; a decomposition is not to be traced."""
    code = """
        import sys, torch, memwall
        from memwall.fusing.op_counts import op_counts
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8))
        memwall.parallel(model, (torch.ones(2, 8),), layout="dp=2", cluster="dgx-h100")
        print("torch._dynamo" in sys.modules)
        op_counts(memwall.profile(model, (torch.ones(2, 8),)).graph)
        print("torch._dynamo" in sys.modules)
    """
    assert forks.printed(code).split() == ["False", "False"]


def test_looking_through_the_modules_loads_none(forks):
    code = """
        import inspect, sys, torch
        from memwall.frontend.torch.process.light_imports import light_imports
        with light_imports():
            frame = inspect.getframeinfo(sys._getframe(0))
            names = [module.__name__ for module in list(sys.modules.values()) if hasattr(module, "__file__")]
            print("sympy" in names, type(sys.modules["sympy"]).__name__)
        print("sympy" in sys.modules)
    """
    assert forks.printed(code).split() == ["True", "_StandIn", "False"]
