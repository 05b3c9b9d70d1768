"""The subcommand ``adfl-stats completion``: a script that lets a shell complete commands and options."""

from __future__ import annotations

import argparse
import re
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


def _words(commands: dict[str, argparse.ArgumentParser]) -> dict[str, list[str]]:
    """Return the options of each command, and the words that its arguments may be, as its usage has them."""
    found = {}
    for name, parser in commands.items():
        usage = parser.format_usage()
        choices = [word for group in re.findall(r"\{([^}]*)\}", usage) for word in group.split(",")]
        found[name] = list(dict.fromkeys(["--help", *re.findall(r"--[a-z][a-z-]*", usage), *map(str.strip, choices)]))
    return found


def _bash(words: dict[str, list[str]]) -> str:
    cases = "\n".join(f"    {name}) words='{' '.join(options)}' ;;" for name, options in words.items())
    return f"""_adfl_stats() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} words
  case ${{COMP_CWORD}}:${{COMP_WORDS[1]}} in
    1:*) words='{" ".join(words)} --help --version' ;;
    *)
  case ${{COMP_WORDS[1]}} in
{cases}
  esac ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _adfl_stats adfl-stats"""


def _zsh(words: dict[str, list[str]]) -> str:
    return f"autoload -U +X bashcompinit && bashcompinit\n{_bash(words)}"


def _fish(words: dict[str, list[str]]) -> str:
    lines = [f"complete -c adfl-stats -n __fish_use_subcommand -a '{' '.join(words)}'"]
    for name, options in words.items():
        for word in options:
            flag = f"-l {word[2:]}" if word.startswith("--") else f"-a {word}"
            lines.append(f"complete -c adfl-stats -n '__fish_seen_subcommand_from {name}' {flag}")
    return "\n".join(lines)


_SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
