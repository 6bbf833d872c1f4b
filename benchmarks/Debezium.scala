// Counts the changes that Debezium's embedded engine delivers, and prints the events per second once all have come.
// Arguments: a properties file, the number of changes; 0: until the standard input ends, then also the time of each
// change from its commit to its delivery. The format is Connect's, so that nothing is serialized.

import io.debezium.embedded.Connect
import io.debezium.engine.{DebeziumEngine, RecordChangeEvent}
import io.debezium.engine.format.ChangeEventFormat
import java.io.FileInputStream
import java.util.{List => JavaList, Properties}
import java.util.concurrent.{CountDownLatch, Executors, TimeUnit}
import org.apache.kafka.connect.data.Struct
import org.apache.kafka.connect.source.SourceRecord
import scala.collection.mutable.ArrayBuffer

object Debezium {
  private val waitSeconds = 300L

  def main(arguments: Array[String]): Unit = {
    val properties = new Properties()
    properties.load(new FileInputStream(arguments(0)))
    val expected = arguments(1).toLong
    val ended = new CountDownLatch(1)
    val lags = ArrayBuffer[Long]()
    var first, last, count = 0L

    val consumer = new DebeziumEngine.ChangeConsumer[RecordChangeEvent[SourceRecord]] {
      override def handleBatch(
          records: JavaList[RecordChangeEvent[SourceRecord]],
          committer: DebeziumEngine.RecordCommitter[RecordChangeEvent[SourceRecord]]): Unit = {
        if (count == 0) first = System.nanoTime()
        records.forEach { record =>
          if (record.record().topic().startsWith("bench.public.")) {
            count += 1
            if (expected == 0) {
              val committed = record.record().value().asInstanceOf[Struct].getStruct("source").getInt64("ts_ms")
              lags += System.currentTimeMillis() - committed
            }
          }
          committer.markProcessed(record)
        }
        committer.markBatchFinished()
        last = System.nanoTime()
        if (expected > 0 && count >= expected) ended.countDown()
      }
    }
    val engine = DebeziumEngine.create[SourceRecord, Connect](ChangeEventFormat.of(classOf[Connect])).using(properties).notifying(consumer).build()
    val thread = Executors.newSingleThreadExecutor()
    thread.execute(engine)
    if (expected == 0) {
      while (System.in.read() >= 0) {}
      println(s"""{"lags": [${lags.mkString(", ")}]}""")
      System.exit(0)
    }
    if (!ended.await(waitSeconds, TimeUnit.SECONDS)) {
      System.err.println(s"$count of $expected changes after $waitSeconds s")
      System.exit(1)
    }
    // The first batch counts as delivered when the clock starts: the engine's start is not in the figure.
    println(s"""{"events": $count, "seconds": ${(last - first) / 1e9}}""")
    System.exit(0)
  }
}
