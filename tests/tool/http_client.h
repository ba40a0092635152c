// A client for HTTP that can also send invalid requests.
#ifndef HBMPROF_TESTS_TOOL_HTTP_CLIENT_H_
#define HBMPROF_TESTS_TOOL_HTTP_CLIENT_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"

namespace hbmprof_test {

struct HttpAnswer {
  int status = 0;  // 0: the server closed the connection without an answer
  std::string headers;
  std::string body;
};

// Returns a connection to `port` of this host.
inline int ConnectTo(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval limit = {60, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

// Sends `text`, and reads the answer until the server closes the connection.
inline HttpAnswer SendHttp(int port, const std::string& text) {
  const int fd = ConnectTo(port);
  send(fd, text.data(), text.size(), MSG_NOSIGNAL);
  std::string all;
  char bytes[65536];
  for (ssize_t count; (count = recv(fd, bytes, sizeof(bytes), 0)) > 0;) all.append(bytes, static_cast<size_t>(count));
  close(fd);
  HttpAnswer answer;
  const size_t end = all.find("\r\n\r\n");
  if (all.size() > 12) answer.status = std::atoi(all.c_str() + 9);
  answer.headers = all.substr(0, end);
  if (end != std::string::npos) answer.body = all.substr(end + 4);
  return answer;
}

// GET with the header Host of this address, and further headers, each with "\r\n".
inline HttpAnswer HttpGet(int port, const std::string& path, const std::string& headers = "") {
  return SendHttp(port, "GET " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\n" + headers + "\r\n");
}

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_TOOL_HTTP_CLIENT_H_
