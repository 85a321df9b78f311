"""JSON requests, as `kerncast.predict` answers them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kerncast.answering.query import Query, among, in_store
from kerncast.answering.routes import asking_for
from kerncast.app.api.results import model_of
from kerncast.app.api.showing import Wanted, shown
from kerncast.core.io.arguments import listed
from kerncast.errors import InvalidValue
from kerncast.models.model import Model, is_model
from kerncast.models.store.store import Store


def query(
    request: str | bytes | dict[str, Any] | list[Any],
    *,
    model: Model | str | Path | Sequence[Model | str | Path] = (),
    store: Store | str | Path | None = None,
    software: str | None = None,
    strict: bool = False,
    compiled: bool = True,
    progress: Wanted = "auto",
) -> Any:
    """Answer requests about how long an op takes. The reply has the type of the request: text, bytes, an object or a list.

    Without `model`, the models in the store answer (`store`, or your own), each the requests that it covers. A `model` is a
    model, its folder, or its id in the store. `software` is for requests that name none: `vllm` (the newest version there
    is), `vllm==0.24.0`, a commit. Every answer has a status; all but `ok` give a reason and no number.
    """
    models = listed(model)
    if models and store is not None and all(isinstance(item, Model) or is_model(Path(item)) for item in models):
        raise InvalidValue("`model` and `store` both say where to look for models: leave one out")
    if models:
        find = among([model_of(item, store) for item in models], strict)
    else:
        find = in_store(store if isinstance(store, Store) else Store.open(store), strict)
    if software is not None:
        find = asking_for(software, find)
    text = request if isinstance(request, str | bytes) else json.dumps(request)
    with shown(progress) as show:
        reply = Query(find, compile=compiled, progress=show).answer(text)
    if isinstance(request, bytes):
        return reply
    return reply.decode() if isinstance(request, str) else json.loads(reply)
