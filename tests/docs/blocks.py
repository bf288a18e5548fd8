"""Code blocks in Markdown files: finds indented blocks, tells shell blocks apart, and extracts their commands."""
import dataclasses
import re
import textwrap

PROGRAMS = ("fsdp-run", "torchrun", "mpirun", "srun", "accelerate", "deepspeed", "cmake", "ctest", "head", "source", "wait",
            "nvidia-smi", "PYTHON", "pip", "python3", "bash", "cd", "git", "apt-get", "ls", "cat", "docker", "tar", "apt")
ASSIGNMENTS = re.compile(r"^(?:[A-Z][A-Z_0-9]*=\S*\s+)*")
SCRIPT = re.compile(r"^(?:\./|build/|tests/|bench/|samples/|scripts/|docs/)\S*$")  # a program by its path
PROMPT = "$ "


@dataclasses.dataclass
class Block:
    path: str    # from the repository's root
    line: int    # the first line's number, from 1
    lines: list  # without the indentation

    def is_shell(self):
        return any(is_command(line) for line in self.joined())

    def joined(self):
        return "\n".join(self.lines).replace("\\\n", " ").splitlines()

    def commands(self):
        """Returns the commands without comments. If a block has prompts, its other lines are output."""
        prompted = any(line.startswith(PROMPT) for line in self.lines)
        lines = [line.removeprefix(PROMPT) for line in self.joined() if not prompted or line.startswith(PROMPT)]
        lines = [re.sub(r"\s+", " ", re.sub(r"(^|\s+)#\s.*$", "", line)).strip() for line in lines]
        return [line for line in lines if line]


def is_command(line):
    if line.startswith(PROMPT):
        return True
    words = ASSIGNMENTS.sub("", line).split()
    if not words or words[0] == "fsdp-run:":  # a message from the program
        return False
    return words[0].rpartition("/")[2] in PROGRAMS or bool(SCRIPT.match(words[0]))


def blocks_of(path, text):
    found, fresh, fenced = [], True, False  # fresh: a block may begin here
    for number, line in enumerate(text.splitlines(), 1):
        fenced ^= line.startswith("```")
        if line.startswith("    ") and line.strip() and not fenced:
            if fresh:
                found.append(Block(path, number, []))
            if found and (fresh or found[-1].line + len(found[-1].lines) == number):
                found[-1].lines.append(line[4:])
            fresh = False
        elif not line.strip() and found and found[-1].line + len(found[-1].lines) == number:
            found[-1].lines.append("")  # a blank line inside, or the end
            fresh = True
        else:
            fresh = not line.strip()
    for block in found:
        while block.lines and not block.lines[-1]:
            block.lines.pop()
        block.lines = textwrap.dedent("\n".join(block.lines)).splitlines()  # blocks in list items are indented more
    return found
