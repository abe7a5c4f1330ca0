"""How generated tokens look on each endpoint, streamed and whole."""

from replicas.simulator.answers.base import Answer, Choice, Usage
from replicas.simulator.answers.chat import ChatAnswer
from replicas.simulator.answers.completions import CompletionAnswer
from replicas.simulator.answers.messages import MessagesAnswer
from replicas.simulator.answers.responses import ResponsesAnswer
from replicas.simulator.answers.transcriptions import TranscriptionAnswer

__all__ = ["Answer", "ChatAnswer", "Choice", "CompletionAnswer", "MessagesAnswer", "ResponsesAnswer", "TranscriptionAnswer", "Usage"]
