"""The subcommand ``adfl-stats completion``: a script that lets a shell complete commands and options."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from typing import Any

__all__ = ["add_completion"]

EXAMPLES = """examples:
  adfl-stats completion bash >> ~/.bashrc
  adfl-stats completion zsh >> ~/.zshrc
  adfl-stats completion fish > ~/.config/fish/completions/adfl-stats.fish"""


def add_completion(commands: Any) -> None:
    """Add the subcommand to the subparsers of the command line."""
    completion = commands.add_parser(
        "completion",
        help="print a script for the completion of commands and options in a shell",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    completion.set_defaults(run=lambda options: print(_SCRIPTS[options.shell](_words(commands.choices))))


@dataclass(frozen=True)
class Words:
    """What may follow a command: its options, the values of those that have a list of them, and its arguments."""

    options: list[str]
    values: dict[str, list[str]]
    arguments: list[str]


def _words(commands: dict[str, argparse.ArgumentParser]) -> dict[str, Words]:
    """Return the words of each command, as its usage has them."""
    words = {}
    for name, parser in commands.items():
        usage = " ".join(parser.format_usage().split())
        values = {option: choices.split(",") for option, choices in re.findall(r"(--[a-z-]+) \{([^}]*)\}", usage)}
        options = dict.fromkeys(["--help", *re.findall(r"--[a-z][a-z-]*", usage)])
        arguments = [word for group in re.findall(r"[^-\w] \{([^}]*)\}", usage) for word in group.split(",")]
        words[name] = Words(list(options), values, arguments)
    return words


def _bash(words: dict[str, Words]) -> str:
    cases = "\n".join(
        f"    {name}:{option}) words='{' '.join(values)}' ;;"
        for name, own in words.items()
        for option, values in own.values.items()
    )
    rest = "\n".join(f"    {name}:*) words='{' '.join(own.options + own.arguments)}' ;;" for name, own in words.items())
    return f"""_adfl_stats() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} words
  if [ "$COMP_CWORD" = 1 ]; then
    words='{" ".join(words)} --help --version'
  else
    case ${{COMP_WORDS[1]}}:${{COMP_WORDS[COMP_CWORD-1]}} in
{cases}
{rest}
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _adfl_stats adfl-stats"""


def _zsh(words: dict[str, Words]) -> str:
    # bashcompinit stands on compinit, which a plain .zshrc does not load.
    load = "(( $+functions[compdef] )) || { autoload -U compinit && compinit; }"
    return f"{load}\nautoload -U +X bashcompinit && bashcompinit\n{_bash(words)}"


def _fish(words: dict[str, Words]) -> str:
    lines = [f"complete -c adfl-stats -n __fish_use_subcommand -f -a '{' '.join(words)}'"]
    for name, own in words.items():
        under = f"complete -c adfl-stats -n '__fish_seen_subcommand_from {name}'"
        for option in own.options:
            choices = f" -x -a '{' '.join(own.values[option])}'" if option in own.values else ""
            lines.append(f"{under} -l {option[2:]}{choices}")
        if own.arguments:
            lines.append(f"{under} -f -a '{' '.join(own.arguments)}'")
    return "\n".join(lines)


_SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
