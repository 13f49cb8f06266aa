#pragma once

// Marks the exports of libconvtime; everything is built with hidden visibility.
#define CONVTIME_API __attribute__((visibility("default")))
