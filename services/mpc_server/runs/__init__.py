"""Runs on this server, from the outside in: what each layer adds to a request for a step.

    api.step                     parses the request
    runs.Runs.answer_to          who may ask; an answer that is recorded; waits for one that is not, in `thread`
    live.LiveRun.ask             the budget; asked twice at once, a step is computed once
      ._do_in_session            waits for a session; says who is to blame if it is lost
    session.RunSession.perform   one thing at a time, on all servers in the same order
      ._agree_and_charge         all servers were asked the same; writes the step down with its charge (`record`)
      ._answer_charged           exchanges acknowledgements; signs the answer and writes it down
    steps.Computation.open       the engine's protocols; `pool` says which noise is drawn ahead

`alive` keeps the runs of this process, and `material` is what they compute on.
"""
