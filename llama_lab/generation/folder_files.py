"""Files that came with an imported model, read for generation: a chat template, sampling defaults.

The chat template is Jinja, rendered as transformers does, in a sandbox that may change nothing:
https://huggingface.co/docs/transformers/chat_templating.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llama_lab.checkpoints import (
    GENERATION_CONFIG_FILE,
    NAMES_FILE,
    TEMPLATE_FILE,
    TOKENIZER_CONFIG_FILE,
)
from llama_lab.errors import UserError
from llama_lab.generation.sampling import SamplingConfig
from llama_lab.model.settings import is_number, shown

TEMPLATE = "chat_template"
SAMPLING = ("do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")
USUAL_TOP_K = 50  # what transformers takes where it samples and no top_k is said
# What else changes which id is chosen there, and the value that changes nothing.
UNKNOWN_HERE = {
    "encoder_repetition_penalty": 1.0,
    "top_h": None,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "num_beams": 1,
    "no_repeat_ngram_size": 0,
    "penalty_alpha": None,
    "bad_words_ids": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "sequence_bias": None,
    "exponential_decay_length_penalty": None,
    "min_length": 0,
    "min_new_tokens": None,
}


def sampling_of_folder(
    folder: Mapping[str, Any] | None, path: Path
) -> tuple[SamplingConfig, list[str]]:
    """The sampling that a folder's generation config asks for.

    Args:
        folder: What the folder brought, as its checkpoint has it.
        path: The checkpoint.

    Returns:
        The sampling, and the settings of the file that this version does not know.

    Raises:
        UserError: There is no such file in the checkpoint, it says nothing of sampling, or a value
            is impossible.
    """
    values = {k: v for k, v in _json(folder, GENERATION_CONFIG_FILE).items() if v is not None}
    if not any(key in values for key in SAMPLING):
        raise UserError(
            f"--sampling folder: {path} came with no sampling defaults (none of "
            f"{', '.join(SAMPLING)} in a {GENERATION_CONFIG_FILE}); set --sampling flags"
        )
    where = f"--sampling folder: {GENERATION_CONFIG_FILE} of {path}: "
    unknown = [
        f"{key} {shown(values[key])}"
        for key, neutral in UNKNOWN_HERE.items()
        if values.get(key) not in (None, neutral)
    ]
    if not isinstance(values.get("do_sample", False), bool):
        raise UserError(f"{where}do_sample {shown(values['do_sample'])}: must be true or false")
    for key in SAMPLING[1:]:
        value = values.get(key, 1)
        if not is_number(value) or (key == "top_k" and not isinstance(value, int)):
            kind = "a whole number" if key == "top_k" else "a number"
            raise UserError(f"{where}{key} {shown(value)}: must be {kind}")
    penalty = values.get("repetition_penalty", 1)
    settings: dict[str, Any] = {"repetition_penalty": None if penalty == 1 else penalty}
    if values.get("do_sample", False):
        settings["temperature"] = values.get("temperature", 1.0)
        settings["top_k"] = values.get("top_k", USUAL_TOP_K) or None
        settings["top_p"] = values.get("top_p")
        settings["min_p"] = values.get("min_p") or None
    else:
        settings["temperature"] = 0
    try:
        return SamplingConfig(**settings), unknown
    except (UserError, ValueError) as error:
        raise UserError(f"{where}{error}") from error


def render_chat(
    folder: Mapping[str, Any] | None, path: Path, messages: list[dict[str, str]]
) -> str:
    """The text that a model's chat template makes of a conversation, up to the model's turn.

    Args:
        folder: What the model's folder brought, as its checkpoint has it.
        path: The checkpoint.
        messages: Each with ``role`` and ``content``.

    Raises:
        UserError: The checkpoint has no template, or it is broken or refuses the conversation.
    """
    import jinja2

    where = f"--chat true: the chat template of {path}"
    refuse_without_template(folder, path)
    try:
        compiled = _environment().from_string(_template(folder))
        return compiled.render(
            messages=messages,
            tools=None,
            documents=None,
            add_generation_prompt=True,
            **_special_names(folder),
        )
    except jinja2.TemplateSyntaxError as error:
        raise UserError(f"{where} is broken (line {error.lineno}: {error.message})") from error
    except Exception as error:  # a template's code may raise whatever Python's may
        reason = " ".join(str(error).split())
        raise UserError(f"{where} refuses this conversation ({reason})") from error


def refuse_without_template(folder: Mapping[str, Any] | None, path: Path) -> None:
    """Refuse a chat with a model that came without a chat template.

    Raises:
        UserError: The checkpoint has none.
    """
    if _template(folder) is None:
        raise UserError(
            f"--chat true: {path} came with no chat template; set --chat false and write "
            "the markup into --prompt, with --special_tokens parse"
        )


def _template(folder: Mapping[str, Any] | None) -> str | None:
    """The template of a file of its own, else of the tokenizer's config."""
    files = (folder or {}).get("files", {})
    if TEMPLATE_FILE in files:
        # As Python reads a text file: a line end is one character.
        return str(files[TEMPLATE_FILE]).replace("\r\n", "\n").replace("\r", "\n")
    value = _json(folder, TOKENIZER_CONFIG_FILE).get(TEMPLATE)
    if isinstance(value, list):  # one a purpose
        named = [t for t in value if isinstance(t, dict) and t.get("name") == "default"]
        value = named[0].get("template") if named else None
    return value if isinstance(value, str) else None


def _special_names(folder: Mapping[str, Any] | None) -> dict[str, str]:
    """The names of special tokens, such as ``eos_token``, by which a template knows them."""
    found: dict[str, str] = {}
    for file in (NAMES_FILE, TOKENIZER_CONFIG_FILE):
        for key, value in _json(folder, file).items():
            name = value.get("content") if isinstance(value, dict) else value
            if key.endswith("_token") and isinstance(name, str):
                found[key] = name
    return found


def _json(folder: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    text = (folder or {}).get("files", {}).get(name)
    content = {} if text is None else json.loads(text)
    return content if isinstance(content, dict) else {}


def _environment() -> Any:
    """Jinja as transformers sets it up for chat templates."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """``{% generation %}`` marks the model's turns for training; here it is its content."""

        tags = {"generation"}  # noqa: RUF012 (Jinja's own form)

        def parse(self, parser: Any) -> nodes.Node | list[nodes.Node]:
            next(parser.stream)
            body: list[nodes.Node] = parser.parse_statements(
                ("name:endgeneration",), drop_needle=True
            )
            return body

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **settings: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **settings)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment
