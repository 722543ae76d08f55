"""The native kernel; everything else stands in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "tuneplex_vllm._native",
            ["src/tuneplex_vllm/_native.c"],
            extra_compile_args=["-O2"],
            libraries=["dl"],
            py_limited_api=True,
            optional=True,  # without a C compiler, the products run in PyTorch
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
