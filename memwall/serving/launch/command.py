"""Words, a script, a Dockerfile, or a manifest of Kubernetes or Compose → the command in it that starts an engine."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memwall.core.errors import UsageError, need
from memwall.core.files import read_text
from memwall.core.structure import one_line
from memwall.serving.launch.flags import EngineLine
from memwall.serving.launch.sglang import SGLANG
from memwall.serving.launch.trtllm import TRTLLM
from memwall.serving.launch.vllm import VLLM

LINES: Mapping[str, EngineLine] = {line.engine: line for line in (VLLM, SGLANG, TRTLLM)}

_STARTS = "vllm serve, python -m sglang.launch_server or trtllm-serve"
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_DECLARING = ("export", "local", "readonly", "declare")
#: words of a shell that stand before commands
_BEFORE = ("then", "else", "do", "{")
_VARIABLE = re.compile(r"\$\{(\w+)(?::?[-=]([^}]*))?\}|\$\((\w+)\)|\$(\w+)")
_IN_QUOTES = r"""'[^']*'|"(?:\\.|[^"\\])*\""""
#: quoted parts of a shell's text, and comments
_PARTS = re.compile(rf"{_IN_QUOTES}|\\.|(?<![^\s;&|(])\#[^\n]*", re.DOTALL)
_ARRAY = re.compile(
    rf"^[ \t]*(?:(?:{'|'.join(_DECLARING)})\s+(?:-\w+\s+)*)?(\w+)(\+?)=\(((?:{_IN_QUOTES}|[^()'\"])*)\)",
    re.MULTILINE | re.DOTALL,
)
_ALL_OF = re.compile(r"\$\{(\w+)\[[@*]\]\}")
#: stands for a dollar in double quotes, behind which no blank divides what is filled in
_QUOTED = "\x01"
_HEREDOC = re.compile(
    r"^[^\n]*?\b(?:cat|tee)\b(?=[^\n]*<<)(?:[^\n]*?(?:>\s*|tee\s+)(?P<before>[^\s<>|]+))?[^\n]*?<<-?\s*['\"]?(?P<end>\w+)"
    r"['\"]?(?:\s*>\s*(?P<after>\S+))?[^\n]*\n(?P<text>.*?)^\s*(?P=end)[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
_REDIRECTION = re.compile(r"\d?(?:>>?|<)")
_ECHOED = re.compile(r"<\(\s*echo\s+'([^']*)'\s*\)")
_SHELLS = ("sh", "bash", "/bin/sh", "/bin/bash", "/usr/bin/bash")
_CONTAINERS = ("docker", "podman", "nerdctl")


@dataclass(frozen=True)
class FoundCommand:
    """What starts an engine: the words behind its name, variables of the environment in front, the version that the tag
    of an image says, and files that the script writes."""

    line: EngineLine
    words: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    version: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    folder: Path = Path()


def find_command(launch: str | Path | Sequence[str]) -> FoundCommand:
    """The command in words, in a text as a shell has it, or in a file. Raises UsageError: no command, or several."""
    if not isinstance(launch, (str, Path)):
        found, source = [*_in_words(tuple(launch))], "the words"
    elif isinstance(launch, Path) or (len(launch.split()) == 1 and Path(launch).is_file()):
        found, source = [*_in_file(Path(launch))], str(launch)
    else:
        found, source = [*_in_script(launch, "the launch line")], "the launch line"
    if not found:
        raise UsageError(f"{source}: no command of an engine is there: want {_STARTS}")
    if len(found) > 1:
        named = " and ".join(each.line.title for each in found)
        raise UsageError(f"{source}: {len(found)} commands of engines ({named}); give one of them")
    return found[0]


def starts_engine(text: str) -> bool:
    """Whether a text has the words with which a command of an engine begins, and more."""
    return any(" ".join(start) in text for line in LINES.values() for start in line.starts) and " " in text


def read_yaml(text: str, source: str) -> list[Any]:
    """The documents of a YAML text. Raises UsageError: not YAML; MissingError: no PyYAML."""
    yaml: Any = need("yaml", "launch")
    try:
        return [each for each in yaml.safe_load_all(text) if each is not None]
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        said = f"{getattr(error, 'problem', error)}" + (f" (at line {mark.line + 1})" if mark else "")
        raise UsageError(f"{source} is no YAML: {one_line(said)}") from None


# -- words -------------------------------------------------------------------------------------------------------------


def _in_words(words: tuple[str, ...], variables: Mapping[str, str] | None = None) -> Iterator[FoundCommand]:
    known = {**(variables or {}), **_variables_in(words)}
    for i, word in enumerate(words):
        if word in ("-c", "-lc") and i and words[i - 1] in _SHELLS and i + 1 < len(words):
            yield from _in_script(words[i + 1], "the shell's words", known)
            return
    image, at = _image_in(words)
    found = _start_in(words)
    if found is not None:
        yield FoundCommand(found[0], words[found[1] :], known, version_of(image))
    elif image and (line := _line_of_image(image)) and line.image[1]:
        yield FoundCommand(line, words[at + 1 :], known, version_of(image))


def _start_in(words: Sequence[str]) -> tuple[EngineLine, int] | None:
    """The engine that words start, and where its flags begin: behind the longest start that fits."""
    for i in range(len(words)):
        fits = [
            (line, i + len(start))
            for line in LINES.values()
            for start in line.starts
            if start == (Path(words[i]).name, *words[i + 1 : i + len(start)])
        ]
        if fits:
            return max(fits, key=lambda each: each[1])
    return None


def _image_in(words: Sequence[str]) -> tuple[str, int]:
    """The image that a container is started of, and its place."""
    if any(Path(word).name in _CONTAINERS for word in words[:3]) and "run" in words[:4]:
        for i, word in enumerate(words):
            if i and not word.startswith("-") and "=" not in word and _line_of_image(word) and words[i - 1] != "--name":
                return word, i
    return "", -1


def _line_of_image(image: str) -> EngineLine | None:
    path = image.partition("@")[0].rpartition("/")[0] + "/" + image.rpartition("/")[2].partition(":")[0]
    is_image = "/" in image or ":" in image
    return next((line for line in LINES.values() if is_image and line.image[0] in path.lower()), None)


def version_of(image: str) -> str:
    """``0.11.0`` of ``vllm/vllm-openai:v0.11.0``; empty where the tag is no version."""
    found = re.match(r"v?(\d+(?:\.\d+)+\S*)", image.rpartition("/")[2].partition("@")[0].partition(":")[2])
    return found[1] if found else ""


def _variables_in(words: Sequence[str]) -> dict[str, str]:
    """Assignments in front of a command, and assignments that a container is given."""
    found: dict[str, str] = {}
    is_front = True
    for before, word in zip(("", *words), words, strict=False):
        name, _, value = word.partition("=")
        given = value if name in ("-e", "--env") else word
        is_given = is_front or "-e" in (before, name) or "--env" in (before, name)
        if is_given and (said := _ASSIGNMENT.fullmatch(given)):
            found[said[1]] = f"${{{said[1]}}}{said[3]}" if said[2] else said[3]
        is_front &= bool(_ASSIGNMENT.fullmatch(word)) or word in (
            "env",
            "exec",
            "sudo",
            "nohup",
            "RUN",
            *_DECLARING,
            *_BEFORE,
        )
    return found


# -- scripts -----------------------------------------------------------------------------------------------------------


def _in_script(text: str, source: str, variables: Mapping[str, str] | None = None) -> Iterator[FoundCommand]:
    """The commands of a shell's text, with what it assigns before, and the files that it writes."""
    files: dict[str, str] = {}
    known, arrays = dict(variables or {}), dict[str, str]()

    def kept(found: re.Match[str]) -> str:
        files[(found["after"] or found["before"] or "").strip("'\"")] = found["text"]
        return ""

    def echoed(found: re.Match[str]) -> str:
        files[name := f"echoed-{len(files)}"] = found[1]
        return name

    def listed(found: re.Match[str]) -> str:
        arrays[found[1]] = f"{arrays.get(found[1], '') if found[2] else ''} {found[3]}"
        return ""

    text = _ECHOED.sub(echoed, _HEREDOC.sub(kept, text)).replace("\\\r\n", " ").replace("\\\n", " ")
    for words in _statements(_ARRAY.sub(listed, _PARTS.sub(_marked, text)), source):
        if all(_ASSIGNMENT.fullmatch(word) for word in words if word not in (*_DECLARING, *_BEFORE)):
            known |= {name: _filled(value, known) for name, value in _variables_in(words).items()}
            continue
        filled = tuple(each for word in words for each in _divided(word, known, arrays, source))
        for found in _in_words(filled, variables):
            own = {_filled(name, known): _filled(body, known) for name, body in files.items()}
            yield FoundCommand(
                found.line, found.words, found.variables, found.version, {**own, **found.files}, found.folder
            )


def _marked(part: re.Match[str]) -> str:
    """A quoted part of a text with its dollars marked; a comment is left out."""
    said = part[0]
    return "" if said.startswith("#") else said.replace("$", _QUOTED) if said.startswith('"') else said


def _divided(word: str, known: Mapping[str, str], arrays: Mapping[str, str], source: str) -> Iterator[str]:
    """The words that a word with variables stands for, as a shell divides them; a script's own arguments are none."""
    plain = word.replace(_QUOTED, "$")
    found = _ALL_OF.fullmatch(plain)
    if found and found[1] in arrays:
        for each in _split(arrays[found[1]], source):
            yield from _divided(each, known, arrays, source)
    elif plain in ("$@", "$*"):
        return
    else:
        filled = _filled(word, known) if "$" in word else word
        for each in [filled] if filled == word else filled.split():
            yield _filled(each, known)


def _statements(text: str, source: str) -> Iterator[tuple[str, ...]]:
    """The commands of a text without comments, without their redirections."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="\n;&|")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    words: list[str] = []
    is_redirected = False
    try:
        for word in [*_tokens(lexer), "\n"]:
            if word and not word.strip("\n;&|"):
                if words:
                    yield tuple(words)
                    words = []
            elif not is_redirected and not _REDIRECTION.match(word):
                words.append(word)
            is_redirected = _REDIRECTION.fullmatch(word) is not None
    except ValueError as error:
        raise UsageError(f"{source}: {error}: a quote is not closed") from None


def _tokens(lexer: shlex.shlex) -> Iterator[str]:
    while (token := lexer.get_token()) is not None:
        yield token


def _filled(text: str, known: Mapping[str, str]) -> str:
    """With the variables that are known; others stay."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[3] or found[4]
        return known.get(name, found[0] if found[2] is None else found[2])

    return _VARIABLE.sub(value, text.replace(_QUOTED, "$"))


# -- files -------------------------------------------------------------------------------------------------------------


def _in_file(path: Path) -> Iterator[FoundCommand]:
    text = read_text(path)
    if path.suffix in (".yaml", ".yml"):
        found = [each for document in read_yaml(text, str(path)) for each in _in_manifest(document)]
    elif "dockerfile" in path.name.lower() or re.search(r"^FROM\s", text, re.MULTILINE | re.IGNORECASE):
        found = [*_in_dockerfile(text, str(path))]
    else:
        found = [*_in_script(text, str(path))]
    for each in found:
        yield FoundCommand(each.line, each.words, each.variables, each.version, each.files, path.parent)


def _in_dockerfile(text: str, source: str) -> Iterator[FoundCommand]:
    """ENTRYPOINT and CMD of the last image, with its ENV."""
    said: dict[str, str] = {}
    variables: dict[str, str] = {}
    for line in text.replace("\\\r\n", " ").replace("\\\n", " ").splitlines():
        name, _, rest = line.strip().partition(" ")
        if name.upper() in ("FROM", "ENTRYPOINT", "CMD"):
            said[name.upper()] = rest.strip()
        elif name.upper() in ("ENV", "ARG"):
            key, _, value = rest.strip().partition(" ")
            variables |= _variables_in(_split(rest, source)) or {key: value.strip()}
    words = [word for part in ("ENTRYPOINT", "CMD") for word in _exec_form(said.get(part, ""), source)]
    image = said.get("FROM", "").split(" ")[0]
    yield from _of_container(image, [_filled(word, variables) for word in words], variables, "ENTRYPOINT" in said)


def _exec_form(text: str, source: str) -> list[str]:
    """``["vllm", "serve"]``, or words as a shell has them."""
    if text.startswith("["):
        try:
            return [str(word) for word in json.loads(text)]
        except ValueError:
            raise UsageError(f"{source}: {one_line(text, 60)} is no list of words in JSON") from None
    return _split(text, source)


def _split(text: str, source: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{source}: {error}: a quote is not closed") from None


def _in_manifest(document: Any) -> Iterator[FoundCommand]:
    """Containers wherever they stand: an image with a command or with arguments."""
    if isinstance(document, list):
        for each in document:
            yield from _in_manifest(each)
    elif isinstance(document, dict):
        words = [word for key in ("entrypoint", "command", "args") for word in _listed(document.get(key))]
        if isinstance(document.get("image"), str) and words:
            variables = _environment(document.get("env") or document.get("environment"))
            has_entry = bool(document.get("entrypoint") or ("args" in document and document.get("command")))
            filled = [_filled(word, variables) for word in words]
            yield from _of_container(document["image"], filled, variables, has_entry)
        else:
            for each in document.values():
                yield from _in_manifest(each)


def _listed(said: Any) -> list[str]:
    if isinstance(said, str):
        return _split(said, "the manifest")
    return [str(word) for word in said] if isinstance(said, list) else []


def _environment(said: Any) -> dict[str, str]:
    """``[{name, value}]`` of Kubernetes; a mapping or ``NAME=value`` of Compose."""
    if isinstance(said, dict):
        return {str(name): str(value) for name, value in said.items()}
    pairs = [(each["name"], each.get("value", "")) for each in said or () if isinstance(each, dict) and "name" in each]
    return {**dict(pairs), **_variables_in([each for each in said or () if isinstance(each, str)])}


def _of_container(
    image: str, words: Sequence[str], variables: Mapping[str, str], has_entry: bool = False
) -> Iterator[FoundCommand]:
    """What a container runs; the image of an engine may start it by itself."""
    found = [*_in_words(tuple(words), variables)]
    line = _line_of_image(image)
    if not found and line and line.image[1] and not has_entry:
        found = [FoundCommand(line, tuple(words), dict(variables))]
    for each in found:
        yield FoundCommand(each.line, each.words, each.variables, each.version or version_of(image), each.files)
