"""Calling services over HTTP: `Client` for people's programs, and `calls`, on which parties' calls rest as well."""

from caps.client.calls import AnswerRefused, ClientError, NotTrusted, ProblemError, Unreachable
from caps.client.client import Client, Download, Event
from caps.client.estimates import Estimate

__all__ = [
    "AnswerRefused",
    "Client",
    "ClientError",
    "Download",
    "Estimate",
    "Event",
    "NotTrusted",
    "ProblemError",
    "Unreachable",
]
