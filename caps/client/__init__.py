"""Calling services over HTTP: `Client` for people's programs, and `calls`, on which parties' calls rest as well."""

from caps.client.calls import AnswerRefused, ClientError, NotTrusted, ProblemError, Unreachable
from caps.client.client import Client, Download, Event

__all__ = [
    "AnswerRefused",
    "Client",
    "ClientError",
    "Download",
    "Event",
    "NotTrusted",
    "ProblemError",
    "Unreachable",
]
