"""The one place that states the version, which the build reads too, and the name under which pip finds memwall."""

__version__ = "0.1.0"

#: The import package and the command are ``memwall``; that name of the package index is another program's.
DISTRIBUTION = "memwall-roofline"
