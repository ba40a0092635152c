// Requests to the control channel of a running program (src/protocol/control.h), and the metrics in its answers.
#ifndef HBMPROF_TESTS_SUPPORT_CONTROL_SOCKET_H_
#define HBMPROF_TESTS_SUPPORT_CONTROL_SOCKET_H_

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>

#include "gtest/gtest.h"

namespace hbmprof_test {

// Returns a connection to the socket at `path` that has sent `text`; the caller closes it.
inline int Connect(const std::string& path, const std::string& text) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0) << std::strerror(errno);
  send(fd, text.data(), text.size(), MSG_NOSIGNAL);
  return fd;
}

// Reads up to the end and closes the connection. Leaves out the line feeds before an answer that took long.
inline std::string ReadAll(int fd) {
  std::string text;
  char bytes[4096];
  for (ssize_t count; (count = recv(fd, bytes, sizeof(bytes), 0)) > 0;) text.append(bytes, static_cast<size_t>(count));
  close(fd);
  return text.erase(0, text.find_first_not_of('\n'));
}

// Returns the body of the answer to `request`. The test fails if the answer is an error or not complete.
inline std::string ControlAnswer(const std::string& path, const std::string& request) {
  const std::string answer = ReadAll(Connect(path, request + "\n"));
  const size_t end = answer.find('\n');
  if (end == std::string::npos) {
    ADD_FAILURE() << request << ": " << answer;
    return "";
  }
  EXPECT_EQ(answer.substr(0, end), "ok " + std::to_string(answer.size() - end - 1)) << request << ": " << answer;
  return answer.substr(end + 1);
}

// Returns the sum of the samples of a metric in the text format of Prometheus.
inline int64_t Metric(const std::string& text, const std::string& name) {
  int64_t sum = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const bool is_sample = line.rfind(name + "{", 0) == 0 || line.rfind(name + " ", 0) == 0;
    if (is_sample) sum += std::stoll(line.substr(line.rfind(' ')));
  }
  return sum;
}

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_SUPPORT_CONTROL_SOCKET_H_
