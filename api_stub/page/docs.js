// Swagger UI with this service's description. Relative addresses work below any prefix.
SwaggerUIBundle({ url: "openapi.json", dom_id: "#swagger-ui", deepLinking: true })
