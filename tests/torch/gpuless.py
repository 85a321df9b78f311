"""Inductor's Triton path without a GPU: up to and including the choice of kernels, with torch's own heuristics and templates.

A fake driver tells Triton of a GPU that never runs anything; CPU tensors take the place of a GPU's. What is chosen is rendered,
and then replaced by ATen's kernel, so that the compiled function runs and its result can be checked.
"""

from __future__ import annotations

import contextlib
from importlib import import_module


class FakeDriver:
    """What Inductor asks a driver before anything runs: an H100."""

    def get_current_target(self):
        return import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_device_interface(self):
        return import_module("torch").cpu

    def get_active_torch_device(self):
        return import_module("torch").device("cpu")

    def get_benchmarker(self):
        raise AssertionError("nothing can be timed without a GPU")

    @classmethod
    def is_active(cls):
        return True


def library_of(choice):
    """ATen's kernel for the product (without a bias) that a choice computes."""
    where, name = ("bmm", "aten_bmm") if len(choice.layout.size) == 3 else ("mm", "aten_mm")
    kernel = getattr(import_module(f"torch._inductor.kernel.{where}"), name)
    return kernel.bind(choice.input_nodes, choice.layout)


@contextlib.contextmanager
def triton_on_cpu(handler=None, **settings):
    """Inductor takes CPU tensors for a GPU's. `handler` makes the choices; what it leaves is in the list that this yields.

    One list of rendered kernels, by name, for each product that was compiled.
    """
    torch = import_module("torch")
    runtime = import_module("triton.runtime")
    choosing = import_module("torch._inductor.select_algorithm")
    virtual = import_module("torch._inductor.virtualized").V
    config = import_module("torch._inductor.config")
    left: list[list[str]] = []

    def keep_the_library(choices):
        left.append([choice.name for choice in choices])
        extern = [choice for choice in choices if type(choice).__name__ == "ExternKernelCaller"]
        return extern[:1] or [library_of(choices[0])]

    found = runtime.driver._active
    selector = choosing.get_algorithm_selector_cache()
    wanted = {
        "cpu_backend": "triton", "max_autotune": True, "max_autotune_gemm_backends": "ATEN,TRITON",
        "fx_graph_cache": False, "autotune_local_cache": False, **settings,
    }  # fmt: skip
    runtime.driver.set_active(FakeDriver())
    before = list(selector.preprocessing_fns)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(config.patch(wanted))
            if handler is not None:
                stack.enter_context(virtual.set_choices_handler(handler))
            choosing.add_preprocessing_fn(keep_the_library)
            torch._dynamo.reset()
            yield left
    finally:
        selector.preprocessing_fns[:] = before
        runtime.driver._active = found
        torch._dynamo.reset()
