#include "runtime/log/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

namespace ofsdp::runtime {
namespace {

// A line under construction in a buffer of its own; ten fields of at most 24 characters fit well.
class Line {
 public:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    const size_t room = buffer_.size() - size_;
    const auto result =
        fmt::format_to_n(buffer_.data() + size_, room, format, std::forward<Args>(args)...);
    OFSDP_CHECK(result.size <= room, "a metrics line of more than {} bytes", buffer_.size());
    size_ += result.size;
  }
  // ,"key":value with the nine digits of a float32
  void add_float(const char* key, double value) {
    add(",\"{}\":", key);
    std::isfinite(value) ? add("{:.9g}", value) : add("null");
  }
  // ,"key":value with the fewest digits that read back as the same double
  void add_double(const char* key, double value) {
    add(",\"{}\":", key);
    std::isfinite(value) ? add("{}", value) : add("null");
  }
  std::string_view close() {
    add("}}\n");
    return {buffer_.data(), size_};
  }

 private:
  std::array<char, 768> buffer_;
  size_t size_ = 0;
};

std::string number_or_null(double value) {
  return std::isfinite(value) ? format_text("{}", value) : std::string("null");
}

}  // namespace

MetricsWriter::MetricsWriter(MetricsWriter&& other) noexcept { *this = std::move(other); }

MetricsWriter& MetricsWriter::operator=(MetricsWriter&& other) noexcept {
  std::swap(fd_, other.fd_);
  path_.swap(other.path_);
  return *this;
}

MetricsWriter::~MetricsWriter() {
  if (fd_ >= 0) close(fd_);
}

Result<MetricsWriter> MetricsWriter::open(const std::string& path, Mode mode) {
  MetricsWriter writer;
  if (path.empty()) return writer;
  const int how = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
  writer.fd_ = ::open(path.c_str(), how | (mode == Mode::kTruncate ? O_TRUNC : 0), 0666);
  if (writer.fd_ < 0) {
    return input_error("--metrics {}: cannot write the file: {}", path, std::strerror(errno));
  }
  writer.path_ = path;
  return writer;
}

Status MetricsWriter::write_line(std::string_view line) {
  while (fd_ >= 0 && !line.empty()) {
    const ssize_t written = ::write(fd_, line.data(), line.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      return fault("--metrics {}: writing failed: {}", path_, std::strerror(errno));
    }
    line.remove_prefix(static_cast<size_t>(written));
  }
  return ok_status();
}

Status MetricsWriter::step(const StepRow& row) {
  Line line;
  line.add("{{\"kind\":\"step\",\"step\":{},\"epoch\":{}", row.step, row.epoch);
  line.add_float("loss", row.loss);
  line.add_float("grad_norm", row.grad_norm);
  line.add_double("lr", row.lr);
  line.add_float("step_ms", row.step_ms);
  line.add_float("samples_per_s", row.samples_per_s);
  line.add(",\"peak_bytes\":{}", row.peak_bytes);
  return write_line(line.close());
}

Status MetricsWriter::eval(const EvalRow& row) {
  Line line;
  line.add("{{\"kind\":\"eval\",\"step\":{},\"epoch\":{}", row.step, row.epoch);
  line.add_float("loss", row.loss);
  line.add_double("accuracy", row.accuracy.value_or(std::nan("")));
  return write_line(line.close());
}

Status MetricsWriter::end(const EndRow& row) {
  return write_line(
      format_text("{{\"kind\":\"end\",\"steps\":{},\"seconds\":{},\"median_step_ms\":{},"
                  "\"peak_bytes\":[{}],\"planned_peak_bytes\":[{}]}}\n",
                  row.steps, number_or_null(row.seconds), number_or_null(row.median_step_ms),
                  joined(row.peak_bytes, ","), joined(row.planned_peak_bytes, ",")));
}

}  // namespace ofsdp::runtime
