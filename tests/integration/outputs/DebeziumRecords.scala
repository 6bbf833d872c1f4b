// Prints the records of Debezium's embedded engine as Kafka Connect's JsonConverter writes them, one line of JSON each,
// up to and with a truncate. Argument: a properties file. Schemas are parts of the field "schemas" only.

import io.debezium.embedded.Connect
import io.debezium.engine.{DebeziumEngine, RecordChangeEvent}
import io.debezium.engine.format.ChangeEventFormat
import java.io.{FileInputStream, PrintStream}
import java.nio.charset.StandardCharsets.UTF_8
import java.util.{List => JavaList, Map => JavaMap, Properties}
import java.util.concurrent.{CountDownLatch, Executors, TimeUnit}
import org.apache.kafka.connect.data.{Schema, Struct}
import org.apache.kafka.connect.json.JsonConverter
import org.apache.kafka.connect.source.SourceRecord

object DebeziumRecords {
  private val waitSeconds = 120L
  private val plain = converter(hasSchemas = false)
  private val withSchemas = converter(hasSchemas = true)

  def main(arguments: Array[String]): Unit = {
    val properties = new Properties()
    properties.load(new FileInputStream(arguments(0)))
    val ended = new CountDownLatch(1)
    val out = new PrintStream(System.out, true, UTF_8)

    val consumer = new DebeziumEngine.ChangeConsumer[RecordChangeEvent[SourceRecord]] {
      override def handleBatch(
          records: JavaList[RecordChangeEvent[SourceRecord]],
          committer: DebeziumEngine.RecordCommitter[RecordChangeEvent[SourceRecord]]): Unit = {
        records.forEach { event =>
          val record = event.record()
          out.println(s"""{"topic": "${record.topic}", "plain": ${json(plain, record)}, "schemas": ${json(withSchemas, record)}}""")
          committer.markProcessed(event)
          if (record.value != null && record.value.asInstanceOf[Struct].getString("op") == "t") ended.countDown()
        }
        committer.markBatchFinished()
      }
    }
    val failure: DebeziumEngine.CompletionCallback = (_, message, _) => {
      System.err.println(message)
      System.exit(1)
    }
    val engine = DebeziumEngine.create[SourceRecord, Connect](ChangeEventFormat.of(classOf[Connect]))
      .using(properties).using(failure).notifying(consumer).build()
    Executors.newSingleThreadExecutor().execute(engine)
    if (!ended.await(waitSeconds, TimeUnit.SECONDS)) {
      System.err.println(s"no truncate after $waitSeconds s")
      System.exit(1)
    }
    System.exit(0)
  }

  private def converter(hasSchemas: Boolean): JsonConverter = {
    val made = new JsonConverter()
    made.configure(JavaMap.of("schemas.enable", hasSchemas.toString), false)
    made
  }

  private def json(converter: JsonConverter, record: SourceRecord): String = {
    def text(schema: Schema, value: Any): String =
      Option(converter.fromConnectData(record.topic, schema, value)).fold("null")(new String(_, UTF_8))
    s"""{"key": ${text(record.keySchema, record.key)}, "value": ${text(record.valueSchema, record.value)}}"""
  }
}
