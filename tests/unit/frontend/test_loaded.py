"""Which modules are loaded below a package."""

import sys
from types import ModuleType

from memwall.frontend.torch.process.loaded import modules_below


def test_a_module_is_found_while_it_is_loaded(monkeypatch):
    """And what is in its place later; names are looked at once, modules each time."""
    assert modules_below("planted.models") == []
    for made in (ModuleType("planted.models.one"), ModuleType("planted.models.one")):
        monkeypatch.setitem(sys.modules, "planted.models.one", made)
        monkeypatch.setitem(sys.modules, "planted.models_of_others", ModuleType("planted.models_of_others"))
        assert modules_below("planted.models") == [made]
    monkeypatch.delitem(sys.modules, "planted.models.one")
    assert modules_below("planted.models") == []
