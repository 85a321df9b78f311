"""One artefact of every kind, made once."""

import pytest
from tests.support.artefacts import every_artefact


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """The name of each kind with the path of an artefact that is whole; tests copy what they damage."""
    return every_artefact(tmp_path_factory.mktemp("artefacts"))
