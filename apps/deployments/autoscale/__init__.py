"""Autoscale: how many workers a deployment should have, why, and who brings it about.

| module | what |
|---|---|
| `terms` | plain values: policy, sample, state, decision; no Django |
| `schedules` | which weekly window holds at a moment, by its clock |
| `loads` | a sample as shares of what the workers can do |
| `decide` | the decision: a pure function of policy, samples, time and state |
| `replay` | what another policy would have done with recorded samples |
| `enums`, `services`, `selectors` | policies, samples, decisions in the database (`models.autoscale`) |
| `schedule_text` | windows of a week as people write them |
| `measuring` | one sample of a deployment, from Redis |
| `tick` | one beat: claim, measure, decide, record, carry out |
| `carrying_out` | a decision's life: drain, scale, done or failed |
| `executors` | who starts and ends workers: our supervisor, Kubernetes, systemd, nobody |
| `admin`, `what_if` | pages |
"""
