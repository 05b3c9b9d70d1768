"""The compiled kernel; everything else about the package stands in pyproject.toml.

``ADFL_OPENMP=0`` builds without OpenMP. Otherwise a small program is compiled first: where that
fails, the kernel is built single-threaded and says so. Results do not depend on it.
"""

import os
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

PARTS = ("watch.pxi", "combiner.pxi", "losses.pxi", "state.pxi")
HEADERS = ("blocks.h", "blocks_impl.h", "products_impl.h", "rules.h", "rules_impl.h")
PROBE = "#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n"


class BuildKernel(build_ext):
    """Add the compiler's own flags: optimisation and, where it works, OpenMP."""

    def build_extensions(self):
        msvc = self.compiler.compiler_type == "msvc"
        openmp = ["/openmp"] if msvc else ["-fopenmp"]
        use_openmp = os.environ.get("ADFL_OPENMP", "1") != "0" and self._compiles(openmp)
        if not use_openmp:
            print("adfl_stats: building the kernel without OpenMP (one thread)", file=sys.stderr)
        for extension in self.extensions:
            # No -march=native and no -ffast-math: the wheel must run everywhere, and finiteness
            # checks must keep their meaning. The kernel picks its instruction set when imported.
            # Floating-point traps and errno are not used, and without them min/max and exp vectorise.
            gnu = ["-O3", "-fno-trapping-math", "-fno-math-errno", "-Wno-psabi"]
            extension.extra_compile_args = ["/O2"] if msvc else gnu
            if use_openmp:
                extension.extra_compile_args += openmp
                extension.extra_link_args = [] if msvc else openmp
        super().build_extensions()

    def _compiles(self, flags):
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "probe.c")
            source.write_text(PROBE)
            try:
                objects = self.compiler.compile([str(source)], output_dir=folder, extra_postargs=flags)
                self.compiler.link_executable(objects, str(Path(folder, "probe")), extra_postargs=flags)
            except Exception:
                return False
        return True


setup(
    ext_modules=[
        Extension(
            "adfl_stats._kernels",
            sources=["src_ext/_kernels.pyx"],
            depends=[f"src_ext/{name}" for name in (*PARTS, *HEADERS)],
            include_dirs=["src_ext"],
        )
    ],
    cmdclass={"build_ext": BuildKernel},
)
