"""A project with a template of its own: functions that do on demand what functions can do wrong."""

from __future__ import annotations

from pathlib import Path

TEMPLATE = """
AWSTemplateFormatVersion: "2010-09-09"
Transform: AWS::Serverless-2016-10-31
Parameters:
  Concurrency: { Type: Number, Default: 2 }
  Greeting: { Type: String, Default: "" }
Conditions:
  IsGreeted: !Not [!Equals [!Ref Greeting, ""]]
Globals:
  Function:
    Handler: app.handler
    MemorySize: 128
    Timeout: 5
    Environment:
      Variables:
        DURABLE_STORE: !Sub dynamodb://${Table}?bucket=${Bucket}&region=${AWS::Region}
        LOOP_QUEUE_URL: !Ref LoopQueue
        ALLOWED_QUEUE_URL: !Ref AllowedQueue
        GREETING: !If [IsGreeted, !Ref Greeting, nobody]
Resources:
  Table:
    Type: AWS::DynamoDB::Table
    Properties:
      BillingMode: PAY_PER_REQUEST
      AttributeDefinitions: [{ AttributeName: pk, AttributeType: S }]
      KeySchema: [{ AttributeName: pk, KeyType: HASH }]
  Bucket: { Type: AWS::S3::Bucket }
  Bus:
    Type: AWS::Events::EventBus
    Properties: { Name: !Sub "${AWS::StackName}-bus" }
  Letters: { Type: AWS::SQS::Queue }
  BatchQueue:
    Type: AWS::SQS::Queue
    Properties: { RedrivePolicy: { deadLetterTargetArn: !GetAtt Letters.Arn, maxReceiveCount: 2 } }
  LoopQueue:
    Type: AWS::SQS::Queue
    Properties: { RedrivePolicy: { deadLetterTargetArn: !GetAtt Letters.Arn, maxReceiveCount: 2 } }
  AllowedQueue: { Type: AWS::SQS::Queue }
  Echo:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: functions/echo
      Events:
        Http: { Type: HttpApi, Properties: { Method: POST, Path: "/echo/{name}" } }
        Bus:
          Type: EventBridgeRule
          Properties: { EventBusName: !GetAtt Bus.Name, Pattern: { detail-type: [echo] } }
  Tick:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: functions/echo
      Events: { Often: { Type: Schedule, Properties: { Schedule: rate(1 minute) } } }
  Batch:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: functions/echo
      Handler: app.batch
      Events:
        Queue:
          Type: SQS
          Properties:
            Queue: !GetAtt BatchQueue.Arn
            BatchSize: 5
            FunctionResponseTypes: [ReportBatchItemFailures]
            ScalingConfig: { MaximumConcurrency: !Ref Concurrency }
  Loop:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: functions/echo
      Handler: app.loop
      Events: { Queue: { Type: SQS, Properties: { Queue: !GetAtt LoopQueue.Arn, BatchSize: 1 } } }
  Allowed:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: functions/echo
      Handler: app.loop
      RecursiveLoop: Allow
      Events: { Queue: { Type: SQS, Properties: { Queue: !GetAtt AllowedQueue.Arn, BatchSize: 1 } } }
"""

APP = """
import json, os, sys, time
import boto3

def handler(event, context):
    do = event.get("do") if isinstance(event, dict) else None
    if do == "raise":
        raise ValueError("no such thing")
    if do == "exit":
        os._exit(3)
    if do == "sleep":
        time.sleep(event["s"])
    if do == "put":
        boto3.client("s3").put_object(Bucket=os.environ["DURABLE_STORE"].split("bucket=")[1].split("&")[0],
                                      Key="one", Body=b"1")
    print("seen", json.dumps(event), flush=True)
    return {"event": event, "greeting": os.environ["GREETING"], "pid": os.getpid(),
            "name": context.function_name, "left_ms": context.get_remaining_time_in_millis(),
            "request_id": context.aws_request_id, "path": sys.path}

def batch(event, context):
    failed = []
    for record in event["Records"]:
        body = json.loads(record["body"])
        print("record", body["n"], record["attributes"]["ApproximateReceiveCount"], flush=True)
        time.sleep(body.get("s", 0))
        if body.get("fails"):
            failed.append({"itemIdentifier": record["messageId"]})
    return {"batchItemFailures": failed}

def loop(event, context):
    (record,) = event["Records"]
    body = json.loads(record["body"])
    url = os.environ[body["queue"] + "_QUEUE_URL"]
    print("round", body["left"], flush=True)
    if body["left"]:
        body["left"] -= 1
        sqs, text = boto3.client("sqs"), json.dumps(body)
        if body["left"] % 2:
            sqs.send_message(QueueUrl=url, MessageBody=text)
        else:
            sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": "one", "MessageBody": text}])
"""


def make_project(folder: Path, template: str = TEMPLATE) -> Path:
    """Writes it."""
    (folder / "template.yaml").write_text(template, "utf-8")
    code = folder / "functions" / "echo"
    code.mkdir(parents=True)
    (code / "app.py").write_text(APP, "utf-8")
    return folder
