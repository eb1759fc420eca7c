"""Skills: instructions that a model reads when a task calls for them, frozen with the agent that has them."""

from pydantic import Field

from perdure.contracts.values import Value


class Skill(Value):
    """One skill, as its ``SKILL.md`` describes it.

    Attributes:
        name: Unique in its capability.
        capability: What the skill is part of, if that is named.
        description: What it is for, and when to read it; the model sees it before it chooses.
        body: What the model reads when it calls the tool ``skill``.
        allowed_tools: Tools that the author means it to use; advice, no permission.
        license: Its licence, or where that stands.
        compatibility: What it needs of its surroundings.
        metadata: Whatever else the author notes.
        files: The first other files of its folder.
        folder: Where this process has the folder. It differs from worker to worker, and is no part of a definition.
    """

    name: str = Field(min_length=1)
    capability: str = ""
    description: str = Field(min_length=1)
    body: str = ""
    allowed_tools: tuple[str, ...] = ()
    license: str | None = None
    compatibility: str | None = None
    metadata: dict[str, str] = {}
    files: tuple[str, ...] = ()
    folder: str = Field(default="", exclude=True)

    @property
    def id(self) -> str:
        """The name under which there is no other one: ``capability:name``, or the name alone without a capability."""
        return f"{self.capability}:{self.name}" if self.capability else self.name
