"""Activities: all that touches the outside world (models, tools, the store). Importing one module loads one module."""

from perdure.libraries import prepare_litellm

prepare_litellm()  # here, since any module of this package may be the first to import it
