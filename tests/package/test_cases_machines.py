# SPDX-License-Identifier: Apache-2.0
"""Running on real machines: caches, users, homes, disks, path variables, other distributions.

The number in a test's name is the number of the collected case; without one it is a kind of its own.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import fake_opp
import pytest
from environments import VARIABLES, link_dependencies

ROOT = Path(__file__).resolve().parents[2]
for folder in ("tests/python", "tests/mindspore"):
    sys.path.insert(0, str(ROOT / folder))

from fakes import FakeOpp, copy_opp  # noqa: E402
from fla_npu import errors, loader, opp, owner  # noqa: E402
from test_build import BUILD, Cache, finish  # noqa: E402

NOBODY = 65534
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")


def long_tier(*values: str) -> list:
    """Cases for the long tier."""
    return [pytest.param(value, marks=pytest.mark.full) for value in values]


@pytest.fixture(scope="module")
def fake(tmp_path_factory) -> FakeOpp:
    return FakeOpp(tmp_path_factory.mktemp("machine") / "opp", ops=("chunk_fwd_h",))


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path)


def python(code: str, *flags: str, **environment: str) -> subprocess.CompletedProcess:
    env = {k: v for k, v in os.environ.items() if k not in VARIABLES} | {"XDG_DATA_HOME": "/nowhere"}
    env |= {"PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *flags, "-c", code],
        capture_output=True,
        text=True,
        env=env | environment,
    )


# 28-30: the bridge's cache


@pytest.mark.full
def test_28_a_killed_compile_blocks_nobody(cache):
    """kill -9 in mid-compile, then eight at once: one builds, all get it; nothing is left behind."""
    first = cache.start("hang")
    deadline = time.monotonic() + 60
    while not cache.runs() and time.monotonic() < deadline:
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    finish(first)
    compilers = [int(line.split()[0]) for line in cache.log.read_text().splitlines()]
    assert compilers and cache.leftovers(), "the kill came before or after the compilation"
    try:
        results = [finish(p, timeout=120) for p in [cache.start("slow") for _ in range(8)]]
    finally:
        for pid in compilers:
            subprocess.run(["kill", "-9", str(pid)], capture_output=True)
    assert [code for code, *_ in results] == [0] * 8, results[0][2]
    assert len({out for _, out, _ in results}) == 1 and not cache.leftovers()


@pytest.mark.full
def test_28_a_compile_error_reaches_eight_who_wait(cache):
    results = [finish(p, timeout=120) for p in [cache.start("fail") for _ in range(8)]]
    for code, _, err in results:
        assert code == 1 and "error: planted mistake" in err and "command: " in err
    assert not cache.leftovers()


def test_29_eight_threads_bind_one_library(clean, fake):
    import threading

    clean.setenv("FLA_NPU_OPP_PATH", str(fake.root))
    seen, start = [], threading.Barrier(8)

    def work():
        start.wait()
        seen.append(loader.bind("chunk_fwd_h"))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8 and all(binding is seen[0] for binding in seen)


@pytest.mark.full
def test_30_the_cache_follows_neither_the_folder_nor_the_name(cache, tmp_path):
    """From two folders, one of them read-only: one entry, nothing written to either."""
    folders = [tmp_path / "one", tmp_path / "two"]
    outs = set()
    for folder in folders:
        folder.mkdir()
        code, out, err = finish(cache.start(code=f"import os; os.chdir({str(folder)!r})\n{BUILD}"))
        assert code == 0, err
        outs.add(out)
        assert not list(folder.iterdir())
    assert len(outs) == 1 and cache.runs() == 6
    texts = (
        'bridge._texts = lambda old=bridge._texts(): {**old, "calls.cc": old["calls.cc"] + "// new"}\nprint'
    )
    upgraded = finish(cache.start(code=BUILD.replace("print", texts)))
    assert upgraded[0] == 0 and upgraded[1] not in outs  # an upgrade does not find the old build


# 31: users and homes


@pytest.fixture
def open_folder():
    """A folder that another user can enter; pytest's own is closed."""
    folder = Path(tempfile.mkdtemp(prefix="fla_npu_test_"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


# The interpreter itself may lie where nobody can read, so the user changes once all is imported.
AS_NOBODY = f"""import os, ctypes, fla_npu.info
from fla_npu import check_symbols as tool, loader, opp, spec
spec.names(), spec.spec('chunk_fwd_h'), tool.main(['--json', '/etc/hosts'])
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
"""


@root_only
def test_31_another_user_with_a_read_only_package_and_no_home(fake, open_folder):
    """Installed by root, run by nobody from a read-only folder: nothing is written, nothing is needed."""
    package = Path(shutil.copytree(ROOT / "python/fla_npu", open_folder / "site/fla_npu"))
    if not (package / "_contract").exists():
        for contract in (ROOT / "ascendc/ops").glob("*/op.json"):
            (package / "_contract").mkdir(exist_ok=True)
            shutil.copy(contract, package / f"_contract/{contract.parent.name}.json")
    made = copy_opp(fake, open_folder / "opp")
    for path in [*open_folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    env = {"PYTHONPATH": f"{package.parent}:{':'.join(p for p in sys.path if 'site-packages' in p)}",
           "HOME": "/nonexistent", "XDG_DATA_HOME": ""}  # fmt: skip
    where = (
        AS_NOBODY
        + f"os.chdir({str(package)!r}); loader.__file__.startswith({str(package)!r}) or exit('copy')\n"
    )
    done = python(where + "print(loader.bind('chunk_fwd_h').library.path)", FLA_NPU_OPP_PATH=str(made), **env)
    assert done.returncode == 0 and "rror" not in done.stderr.replace("check_symbols: /etc/hosts", "")
    found = python(where + "opp.find()", **env)
    assert "no operator package (OPP) found" in found.stderr


@root_only
@pytest.mark.parametrize(
    "closed", ["vendors", *long_tier("vendors/fla_npu", "vendors/fla_npu/op_api/lib/libcust_opapi.so")]
)
def test_31_permission_is_not_called_absence(fake, open_folder, closed):
    made = copy_opp(fake, open_folder / "opp")
    (made / closed).chmod(0o700)
    done = python(AS_NOBODY + "loader.bind('chunk_fwd_h')", FLA_NPU_OPP_PATH=str(made))
    assert f"permission denied for uid {NOBODY}" in done.stderr and "no such" not in done.stderr
    seen = python(AS_NOBODY + f"raise SystemExit(tool.main([{str(made)!r}, '--op', 'chunk_fwd_h']))")
    assert "ermission denied" in seen.stderr + seen.stdout and seen.returncode in (1, 2)


@pytest.mark.parametrize("home", ["missing", "empty", "no entry"])
def test_31_a_missing_home(clean, fake, home):
    clean.delenv("XDG_DATA_HOME")
    clean.setenv("HOME", {"missing": "/nonexistent", "empty": "", "no entry": "relative"}[home])
    places = opp.survey()
    assert next(p for p in places if p.source == opp.USER).opp is None
    clean.setenv("FLA_NPU_OPP_PATH", str(fake.root))
    assert loader.bind("chunk_fwd_h")


@root_only
def test_31_a_cache_that_cannot_be_written_names_the_variable(cache, tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    file = closed / "file"
    file.touch()  # root may write everywhere, but not below a file
    code, _, err = finish(cache.start(FLA_NPU_CACHE_DIR=str(file / "cache")))
    assert code == 1 and "cannot write to the cache directory" in err and "FLA_NPU_CACHE_DIR" in err


def mounted(folder: Path, size: str) -> bool:
    """A tmpfs of its own on `folder`, when this user may mount."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.full
@root_only
def test_a_full_disk_is_named_and_leaves_nothing(clean, cache, tmp_path):
    """A tmpfs of 600 KB: installing an OPP and compiling the bridge fail with the reason, then work elsewhere."""
    from fla_npu import vendors

    small = tmp_path / "small"
    if not mounted(small, "600k"):
        pytest.skip("no right to mount a tmpfs")
    try:
        source = fake_opp.make_opp(tmp_path / "source")
        (source / "vendors/fla_npu/large.txt").write_bytes(os.urandom(1 << 20))
        with pytest.raises(vendors.InstallError, match="is the disk full"):
            vendors.install(source, small / "opp")
        run = vendors.pack(source, tmp_path)
        done = subprocess.run(["sh", run, f"--install-path={small}/opp"], capture_output=True, text=True)
        assert done.returncode == 1 and "is the disk full" in done.stderr
        assert not list(small.iterdir())
        fat = cache.compiler.read_text().replace("echo made >", "head -c 400000 /dev/zero >")
        cache.compiler.write_text(fat.replace('"$2"; shift', '"$2" || exit 1; shift'))
        for filler in (b"", os.urandom(560 << 10)):  # full when the compiler writes, and before
            (small / "filler").write_bytes(filler)
            code, _, err = finish(cache.start(FLA_NPU_CACHE_DIR=str(small / "cache")))
            assert code == 1 and "No space left" in err and "FLA_NPU_CACHE_DIR" in err, err
            assert not [p for p in small.rglob("*") if p.suffix in (".so", ".o")]
        vendors.install(source, tmp_path / "elsewhere")
        Cache(tmp_path)
        assert finish(cache.start())[0] == 0
    finally:
        subprocess.run(["umount", str(small)], check=True)


# 33, 34: what else is installed


def test_33_the_newest_numpy(fake, tmp_path):
    """NumPy 2 in place of 1: names removed there are not used, and the core asks for no NumPy at all."""
    removed = ("float_", "unicode_", "string_", "NaN", "Inf", "product", "cumproduct", "sometrue", "in1d",
               "row_stack", "trapz", "infty", "complex_", "cfloat", "asfarray")  # fmt: skip
    for path in [*(ROOT / "python").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]:
        text = path.read_text()
        for name in removed:
            assert f"np.{name}" not in text.replace(f"np.{name}_", "").replace(f"np.{name}s", ""), (
                path,
                name,
            )
    (tmp_path / "numpy.py").write_text("raise ImportError('numpy 2 does not fit')")
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    code = "from fla_npu import loader, checks, aclnn, info; loader.bind('chunk_fwd_h'); print('fine')"
    assert python(code, PYTHONPATH=path, FLA_NPU_OPP_PATH=str(fake.root)).stdout == "fine\n"


@pytest.mark.parametrize("version, told", [("2.4.0", True), ("1.26.4", False), ("3.0rc1", True), ("", False)])
def test_33_info_names_a_numpy_that_cann_does_not_fit(clean, tmp_path, version, told):
    """Before CANN says 500001; for the twin any NumPy will do."""
    from click.testing import CliRunner
    from fla_npu import cli, info

    read = info.metadata.version

    def versions(name: str) -> str:
        if name == "numpy" and not version:
            raise info.metadata.PackageNotFoundError
        return version if name == "numpy" else read(name)

    clean.setattr(info.metadata, "version", versions)
    for backend in ("cann", "twin"):
        made = FakeOpp(tmp_path / backend, ops=("chunk_fwd_h",), manifest={"backend": backend})
        clean.setenv("FLA_NPU_OPP_PATH", str(made.root))
        loader.reset()
        text = " ".join(CliRunner().invoke(cli.main, ["info"]).output.split())
        assert ("pip install 'numpy<2'" in text) == (told and backend == "cann"), text
        assert f"numpy {version or 'not installed'}" in text


CALL = """import numpy, torch
from fla_npu.torch import npu_chunk_kda
q, k, v, g = (torch.ones(1, 64, 1, 128, dtype=t) for t in (torch.bfloat16,) * 3 + (torch.float32,))
out, _ = npu_chunk_kda(q, k, v, -g, torch.ones(1, 64, 1), 1.0, layout="BSND", safe_gate=True,
                       a_log=torch.zeros(1), use_qk_l2norm_in_kernel=True)
print(numpy.__version__, bool(out.isfinite().all()), out.float().numpy().shape)"""


@pytest.mark.full
def test_33_a_call_beside_numpy_2(tmp_path):
    pytest.importorskip("torch")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", tmp_path, "numpy>=2"]
    if subprocess.run(list(map(str, pip)), capture_output=True).returncode:
        pytest.skip("no NumPy 2 to be had from the index")
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    chosen = {k: os.environ[k] for k in VARIABLES if k in os.environ}  # the OPP of this test run
    done = python(CALL, PYTHONPATH=path, **chosen)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("2.") and "True (1, 64, 1, 128)" in done.stdout


@pytest.mark.parametrize(
    "error", ["SystemExit(3)", *long_tier("OSError('libascend_hal.so: cannot open')", "RuntimeError('x')")]
)
def test_34_a_framework_that_breaks_on_import(fake, tmp_path, error):
    for name in ("torch", "torch_npu", "mindspore"):
        (tmp_path / f"{name}.py").write_text(f"raise {error}")
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    code = "import fla_npu; from fla_npu import loader, info; loader.bind('chunk_fwd_h'); print(info.collect()['opp'])"
    done = python(code, PYTHONPATH=path, FLA_NPU_OPP_PATH=str(fake.root))
    assert done.returncode == 0 and "'backend': 'twin'" in done.stdout and not done.stderr
    # Asking for that framework's functions shows its own error, not one of ours.
    asked = python("import fla_npu.torch", PYTHONPATH=path)
    assert asked.returncode != 0 and ("SystemExit" in error or error.split("('")[0] in asked.stderr)


def test_no_compiler(cache):
    for value in ("/no/such/compiler", "", "   "):
        code, _, err = finish(cache.start(CXX=value, PATH="/nowhere"))
        assert code == 1 and "no C++ compiler was found: install g++ or set CXX" in err


# Paths and path variables

ODD = [
    "a b",
    "it's",
    'say "x"',
    "$HOME",
    "`id`",
    "中文 目录",
    "back\\slash",
    "x;y&z",
    "*?[a]",
    "\udcff",
    "-n",
    "%s",
    "~",
]


@pytest.mark.parametrize("name", ODD)
def test_a_path_of_any_characters(clean, fake, tmp_path, name):
    root = copy_opp(fake, tmp_path / name)
    clean.setenv("FLA_NPU_OPP_PATH", str(root))
    assert loader.bind("chunk_fwd_h").library.path.is_relative_to(root)
    clean.delenv("FLA_NPU_OPP_PATH")
    clean.setenv("ASCEND_CUSTOM_OPP_PATH", f"/nowhere:{root}/vendors/fla_npu")
    loader.reset()
    assert loader.bind("chunk_fwd_h").library.path.is_relative_to(root)


def test_a_cache_in_a_path_of_any_characters(cache, tmp_path):
    place = tmp_path / 'it\'s "a" $HOME 中文 `x`'
    code, out, err = finish(cache.start(FLA_NPU_CACHE_DIR=str(place)))
    assert code == 0 and Path(out).is_relative_to(place) and Path(out).is_file(), err


def test_info_prints_a_path_of_any_characters(fake, tmp_path):
    for name, encoding in (("中文 $x", "ascii"), ("\udcff", "utf-8")):
        root = copy_opp(fake, tmp_path / name)
        done = subprocess.run(
            [sys.executable, "-m", "fla_npu.cli", "info"], capture_output=True,
            env={**os.environ, "FLA_NPU_OPP_PATH": str(root), "PYTHONIOENCODING": encoding},
        )  # fmt: skip
        assert b"Traceback" not in done.stderr and b"FLA_NPU_OPP_PATH" in done.stdout, done.stderr


def test_path_variables_in_odd_forms(clean, fake):
    vendor = str(fake.vendor)
    forms = [
        ":{}",
        "{}:",
        "::{}::",
        "{}/",
        "{}//",
        "{}/.",
        "/nowhere:{}",
        "{}:{}/",
        "{}/../fla_npu",
        "relative:{}",
    ]
    forms += ["/etc/hosts:{}", f"{'x' * 5000}:{{}}", "~/opp:{}", "\n:{}", "{}/../..", "{}/.."]
    for text in forms:
        clean.setenv("ASCEND_CUSTOM_OPP_PATH", text.replace("{}", vendor))
        loader.reset()
        assert loader.bind("chunk_fwd_h").library.path == fake.path, text
        assert len(opp.find().vendors) == 1, text


@pytest.mark.parametrize(
    "form, hint",
    [(" {}", "space at its end"), ("'{}'", "quotation marks are part"), ('"{}"', "quotation marks are part"),
     ("~{}", "not expanded"), ("$HOME{}", "not expanded"), ("{}\n", r"not shown: '/.*\\n'"), ("\t{}", "not shown"),
     ("{}\r", "not shown"), ("\u200b{}", "not shown.*u200b"), ("\u201c{}\u201d", "quotation marks are part"),
     ("{}/op_api", "the vendor directory is"), ("{}/op_api/lib/libcust_opapi.so", "the vendor directory is")],
)  # fmt: skip
def test_what_a_shell_left_in_a_variable_is_explained(clean, fake, form, hint):
    clean.setenv("ASCEND_CUSTOM_OPP_PATH", form.replace("{}", str(fake.vendor)))
    with pytest.raises(errors.OppNotFound, match=hint):
        opp.find()


def test_one_path_where_one_is_asked_for(clean, fake, tmp_path):
    """Several with a colon, a package that nobody installed, another file: said, and what to do."""
    package = tmp_path / f"fla_npu-1.0-linux_{fake_opp.ARCH}.run"
    package.touch()
    for text, hint in (
        (f"{fake.root}:{fake.root}", "not several"),
        (package, f"opp install {package}"),
        ("/dev/null", "not a dir"),
    ):
        clean.setenv("FLA_NPU_OPP_PATH", str(text))
        with pytest.raises(errors.OppNotFound, match=hint):
            opp.find()


def test_200_entries_in_a_path_variable(clean, fake, tmp_path):
    absent = [str(tmp_path / f"vendor{n}") for n in range(199)]
    clean.setenv("ASCEND_CUSTOM_OPP_PATH", ":".join([*absent, str(fake.vendor)]))
    begun = time.monotonic()
    assert loader.bind("chunk_fwd_h").library.path == fake.path
    assert time.monotonic() - begun < 1
    for folder in absent:
        shutil.copytree(fake.vendor, folder)
    clean.setenv("ASCEND_CUSTOM_OPP_PATH", ":".join([str(fake.vendor), *absent]))
    loader.reset()
    begun = time.monotonic()
    assert loader.bind("chunk_fwd_h").library.path == fake.path  # the first, of 200 that have it
    assert time.monotonic() - begun < 5


def test_links_that_lead_nowhere(clean, fake, tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nothing")
    (tmp_path / "good").symlink_to(fake.root)
    for name, state in {"loop": "can't be read|no such", "dangling": "no such directory"}.items():
        clean.setenv("FLA_NPU_OPP_PATH", str(tmp_path / name))
        with pytest.raises(errors.OppNotFound, match=state):
            opp.find()
    clean.setenv("FLA_NPU_OPP_PATH", str(tmp_path / "good"))
    assert loader.bind("chunk_fwd_h").library.path == fake.path


def test_a_damaged_place_hides_no_good_one_before_it(clean, fake, tmp_path):
    bad = copy_opp(fake, tmp_path / "bad")
    (bad / "manifest.json").write_text("{")
    clean.setenv("ASCEND_OPP_PATH", str(bad))
    clean.setenv("ASCEND_CUSTOM_OPP_PATH", str(fake.vendor))
    assert opp.find().root == fake.root
    clean.delenv("ASCEND_CUSTOM_OPP_PATH")
    with pytest.raises(errors.AbiMismatch, match="can't be understood"):
        opp.find()
    from fla_npu import info

    facts = info.collect()  # says so and goes on
    assert "can't be understood" in facts["problem"] and any("damaged" in p["state"] for p in facts["places"])


# Another distribution that owns the import name


def distribution(site: Path, name: str, files: dict[str, str]) -> None:
    """What pip leaves of a distribution: its files, and a RECORD with their hashes."""
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    rows = []
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(text)}")
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text("\n".join([*rows, f"{info.name}/RECORD,,"]) + "\n")


OURS = {f"fla_npu/{p.relative_to(ROOT / 'python/fla_npu')}": p.read_text()
        for p in (ROOT / "python/fla_npu").glob("*.py")}  # fmt: skip
OURS |= {
    f"fla_npu/_contract/{p.parent.name}.json": p.read_text() for p in (ROOT / "ascendc/ops").glob("*/op.json")
}
THEIRS = {"fla_npu/__init__.py": "from .kernels import fast\n", "fla_npu/kernels.py": "fast = 1\n"}


@pytest.mark.parametrize("order", ["before", "after", "only ours", "theirs removed"])
def test_another_distribution_with_our_import_name(fake, tmp_path, order):
    site = tmp_path / "site"
    installs = [("fla-npu", OURS), ("flash-linear-attention-npu", THEIRS)]
    installs = {"before": installs[::-1], "only ours": installs[:1]}.get(order, installs)
    for name, files in installs:
        distribution(site, name, files)
    link_dependencies(site)
    if order == "theirs removed":  # pip deletes what their RECORD lists
        shutil.rmtree(site / "flash_linear_attention_npu-1.0.dist-info")
        for name in THEIRS:
            (site / name).unlink()
    env = {"PYTHONPATH": str(site), "FLA_NPU_OPP_PATH": str(fake.root)}
    call = python("from fla_npu import loader; loader.bind('chunk_fwd_h'); print('called')", "-S", **env)
    tool = python("from fla_npu.cli import main; main(['info'])", "-S", **env)
    if order == "only ours":
        assert call.stdout == "called\n" and "FLA_NPU_OPP_PATH" in tool.stdout
        return
    word = "is missing: another distribution" if order == "theirs removed" else "flash-linear-attention-npu"
    for done in (call, tool):
        assert done.returncode == 1 and word in done.stderr and "called" not in done.stdout, done.stderr
    assert "pip " in call.stderr and "Traceback" not in tool.stderr
    if order == "before":
        half = python("from fla_npu.kernels import fast; import fla_npu; fla_npu.other", "-S", **env)
        assert "flash-linear-attention-npu" in half.stderr and "half of each" in half.stderr


def test_a_copy_that_hides_the_installed_package_is_named(tmp_path):
    """A checkout on PYTHONPATH, or as the current folder: it has no OPP, the installed package has one."""
    distribution(tmp_path / "site", "fla-npu", OURS)
    link_dependencies(tmp_path / "site")
    path = f"{ROOT / 'python'}:{tmp_path / 'site'}"
    done = python("from fla_npu import opp; opp.find()", "-S", PYTHONPATH=path)
    if "built without an OPP" not in done.stderr:
        pytest.skip("this checkout has an OPP of its own")
    assert (
        f"the copy in {ROOT / 'python/fla_npu'}, which hides the installed one in {tmp_path}/site/fla_npu"
        in done.stderr
    )
    alone = python("from fla_npu import opp; opp.find()", "-S", PYTHONPATH=str(tmp_path / "site"))
    assert "built without an OPP" in alone.stderr and "which hides" not in alone.stderr


def test_a_wheel_on_the_path_as_it_is(tmp_path):
    """Python imports from archives, but no library can be opened in one: said, not called a damaged installation."""
    site = tmp_path / "site"
    distribution(site, "fla-npu", OURS)
    wheel = shutil.make_archive(str(tmp_path / "fla_npu-1.0-py3-none-any"), "zip", site)
    for code in (
        "from fla_npu import loader; loader.bind('chunk_fwd_h')",
        "from fla_npu.cli import main; main(['info'])",
    ):
        done = python(code, PYTHONPATH=wheel)
        assert (
            done.returncode == 1
            and f"from the archive {wheel}" in done.stderr
            and "pip install" in done.stderr
        )


def test_damaged_metadata_of_others_is_passed_over(fake, tmp_path):
    """A dist-info without METADATA or RECORD, beside a stranger that makes us look at all of them."""
    site = tmp_path / "site"
    distribution(site, "fla-npu", OURS)
    for name in ("empty-1.0.dist-info", "~la_npu-0.9.dist-info", "half.egg-info"):
        (site / name).mkdir()
    (site / "fla_npu/notes.txt").write_text("of the user")
    code = "from fla_npu import loader, owner; loader.bind('chunk_fwd_h'); print(repr(owner.mixture()))"
    done = python(code, PYTHONPATH=str(site), FLA_NPU_OPP_PATH=str(fake.root))
    assert (done.stdout, done.stderr) == ("''\n", "")


def test_looking_for_the_owner_is_quick():
    begun = time.perf_counter()
    owner.mixture()
    assert time.perf_counter() - begun < 0.2
