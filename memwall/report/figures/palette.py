"""One colour per op class, per wall and per kind of memory, the same in every picture (Paul Tol's bright scheme)."""

CLASS_COLORS = {
    "contraction": "#4477aa",
    "convolution": "#66ccee",
    "attention": "#aa3377",
    "normalization": "#ee6677",
    "reduction": "#ccbb44",
    "elementwise": "#228833",
    "movement": "#999999",
    "optimizer": "#ee8833",
    "other": "#555555",
}

WALL_COLORS = {"compute": "#228833", "bandwidth": "#ccaa22", "overhead": "#aa3377"}

MEMORY_COLORS = {
    "parameters": "#4477aa",
    "gradients": "#ee6677",
    "optimizer state": "#ee8833",
    "activations": "#228833",
}


def class_color(op_class: str) -> str:
    """The colour of a class; that of ``other`` for one we do not know."""
    return CLASS_COLORS.get(op_class, CLASS_COLORS["other"])
