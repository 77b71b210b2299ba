"""Works on chunks of distributed maps that its queue names."""

from durable_core.aws.work import work_handler

handler = work_handler(workflows="functions.workflows")
