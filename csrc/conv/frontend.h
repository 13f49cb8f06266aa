#pragma once

#include <cudnn.h>

// The headers of the cuDNN frontend that the conv layer uses. The whole frontend (cudnn_frontend.h)
// takes several times as long to compile and needs NVRTC.
#include <cudnn_frontend_EngineConfig.h>
#include <cudnn_frontend_Errata.h>  // needs EngineConfig's declarations before it
#include <cudnn_frontend_ExecutionPlan.h>
#include <cudnn_frontend_Filters.h>
#include <cudnn_frontend_Heuristics.h>
#include <cudnn_frontend_OperationGraph.h>
