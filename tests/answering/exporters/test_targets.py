"""Targets of `export`: those of this package, and those of others."""

from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest

import kerncast
from kerncast.answering import exporters as exporting
from kerncast.answering.exporters import Exporter, exporters
from kerncast.errors import BadFile, InvalidValue
from kerncast.library import registry
from kerncast.testing.models import synthetic_dataset, synthetic_rows


@dataclass(frozen=True)
class RowsOptions:
    top_k: int = 1


class RowsExporter(Exporter):
    name = "rows"
    doc = "the candidates, one per line"
    options_type = RowsOptions

    def write(self, model, out, options, progress):
        out.write_text("".join(f"{row}\n" for row in model.candidates.rows()[: options.top_k]))
        return [out]


class SecondC(RowsExporter):
    name = "c"


@pytest.fixture
def installed(monkeypatch):
    """Makes a class of this module an entry point of another package."""

    def install(name):
        entry = EntryPoint(name, f"{__name__}:{name}", exporting.__name__)
        monkeypatch.setattr(registry.metadata, "entry_points", lambda group: [entry] if group == "kerncast.exporters" else [])
        exporters.cache_clear()

    yield install
    exporters.cache_clear()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    data = synthetic_dataset(folder / "data", synthetic_rows(problems=8))
    return kerncast.train(data, kind="roofline", out=folder / "model", folds=2, progress=None)


def test_a_target_of_another_package_is_written_with_its_own_options(model, installed, tmp_path):
    """By its name, like those of this package; an argument that it does not declare is refused with the targets that do."""
    installed("RowsExporter")
    assert kerncast.export(model, out=tmp_path / "rows", to="rows", top_k=2, progress=None) == [tmp_path / "rows"]
    assert len((tmp_path / "rows").read_text().splitlines()) == 2
    with pytest.raises(InvalidValue, match="`prefix` is only for `to=blob` and `to=c`: leave it out"):
        kerncast.export(model, out=tmp_path / "more", to="rows", prefix="other", progress=None)
    with pytest.raises(InvalidValue, match="`to` is one of autoheuristic, blob, c, csv, json, lookup-table, rows, got 'row'"):
        kerncast.export(model, out=tmp_path / "more", to="row", progress=None)


def test_a_name_that_is_taken_is_refused(installed):
    """With the package that takes it."""
    installed("SecondC")
    with pytest.raises(BadFile, match=r"SecondC.* declares the export target 'c', which already exists"):
        exporters()
