package dblake

import java.io.{ByteArrayOutputStream, FileNotFoundException, IOException}
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.FileAlreadyExistsException
import java.util.Arrays

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FSDataOutputStream, Path}

/** A Delta log on S3. A commit is one PUT with If-None-Match, so the store itself rejects a second writer.
  *
  * If a PUT's answer is lost, its retry finds the object of the first attempt (412), or the attempts end with an error.
  * Then the object is read: Delta writes a new identifier (`txnId`) into every commit, so an object with the same bytes
  * is this commit. Neither is the commit reported as failed, nor is it made twice.
  */
class S3LogStore(conf: Configuration) extends io.delta.storage.HadoopFileSystemLogStore(conf) {

  override def write(
      path: Path, actions: java.util.Iterator[String], overwrite: java.lang.Boolean, hadoop: Configuration): Unit = {
    val buffer = new ByteArrayOutputStream
    while (actions.hasNext) {
      buffer.write(actions.next().getBytes(UTF_8))
      buffer.write('\n')
    }
    val content = buffer.toByteArray
    if (overwrite) put(path, content, condition = false, hadoop)
    else {
      try put(path, content, condition = true, hadoop)
      catch {
        case error: IOException =>
          val there = read(path, hadoop, error)
          if (!there.exists(isOwn(_, content))) {
            if (there.isEmpty) throw error
            val exists = new FileAlreadyExistsException(path.toString)
            exists.initCause(error)
            throw exists
          }
      }
    }
  }

  override def isPartialWriteVisible(path: Path, hadoop: Configuration): java.lang.Boolean = false

  private def put(path: Path, content: Array[Byte], condition: Boolean, hadoop: Configuration): Unit = {
    val builder = path.getFileSystem(hadoop).createFile(path)
    // With the condition, S3A needs no look at the path before: the store decides.
    builder.overwrite(!condition)
    if (condition) builder.must("fs.option.create.conditional.overwrite", true)
    val out = builder.build().asInstanceOf[FSDataOutputStream]
    try out.write(content)
    catch { case error: Throwable => out.abort(); throw error }
    out.close()
  }

  /** The object at `path`, None without one; if it cannot be read, the failure of the write is thrown. */
  private def read(path: Path, hadoop: Configuration, failure: IOException): Option[Array[Byte]] =
    try {
      val in = path.getFileSystem(hadoop).open(path)
      try Some(in.readAllBytes()) finally in.close()
    } catch {
      case _: FileNotFoundException => None
      case error: IOException => failure.addSuppressed(error); throw failure
    }

  private def isOwn(there: Array[Byte], content: Array[Byte]): Boolean =
    Arrays.equals(there, content) && new String(content, UTF_8).contains("\"txnId\":\"")
}
