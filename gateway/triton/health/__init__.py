"""Health of one Triton: what is known of each model (`state`), who finds it out (`checker`), who repairs (`recovery`).

    new: found in the index ───────────┐
    suspected: a request has failed ───┼──▶ probe ── succeeds ──▶ sound: ready, and probed again when it is due
    reloaded or loaded ────────────────┘      └───── fails ─────▶ failing: probed again after 0.5 s
                                                                     │ 3 times, or a process is dead
                                                                     ▼
                                                                  reloading ──▶ probe

    not loaded, by the index ──▶ if a request has unloaded it: forgotten
                             └─▶ if it is expected: missing ──▶ loading ──▶ probe

- A probe is an inference of a new image. It is due every 5 s for the default model and every 10 s for others; 4 times
  rarer while clients get answers, and 6 times rarer after a minute without requests.
- A dead process belongs to a step: each ensemble over that step is not ready until the step is reloaded.
- The index is read every 2 s, with the configurations that say which versions answer.
- A reload unloads and loads a step, then loads the ensembles over it. One gateway does it, if a probe fails there too.
- What a reload has unloaded and not loaded is missing, also if its gateway has died.
- Attempts to reload and to load have growing intervals. With `GATEWAY_HEAL=false` the operator does both.
"""
