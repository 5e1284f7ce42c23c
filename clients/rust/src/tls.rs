//! TLS by rustls: the certificates of the system, or given ones.

use std::sync::Arc;

use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::error::{Error, ErrorKind};

/// Make the connector. The system's certificates are read only for servers with `https`.
pub(crate) fn connector(
    tcp: HttpConnector,
    root_pem: Option<&[u8]>,
    is_https: bool,
) -> Result<HttpsConnector<HttpConnector>, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid(format!("TLS: {error}")))?;
    let builder = match root_pem {
        Some(pem) => builder.dangerous().with_custom_certificate_verifier(Arc::new(Trusted::new(pem, provider)?)),
        None if is_https => {
            builder.with_native_roots().map_err(|error| invalid(format!("the system's certificates: {error}")))?
        }
        None => builder.with_root_certificates(RootCertStore::empty()),
    };
    let builder = HttpsConnectorBuilder::new().with_tls_config(builder.with_no_client_auth());
    Ok(builder.https_or_http().enable_http1().wrap_connector(tcp))
}

/// Trusts given certificates: authorities, and servers that have one of them themselves, as `--tls-self` makes it. webpki
/// refuses the latter because it may sign others, too; its name is checked, and that the server has its key.
#[derive(Debug)]
struct Trusted {
    given: Vec<CertificateDer<'static>>,
    webpki: Arc<WebPkiServerVerifier>,
}

impl Trusted {
    fn new(pem: &[u8], provider: Arc<rustls::crypto::CryptoProvider>) -> Result<Self, Error> {
        let given = CertificateDer::pem_slice_iter(pem)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| invalid(format!("the certificates are not PEM: {error:?}")))?;
        let mut roots = RootCertStore::empty();
        for certificate in &given {
            roots
                .add(certificate.clone())
                .map_err(|error| invalid(format!("a certificate cannot be trusted: {error}")))?;
        }
        let webpki = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let webpki = webpki.map_err(|error| invalid(format!("the PEM has no certificate to trust: {error}")))?;
        Ok(Self { given, webpki })
    }
}

impl ServerCertVerifier for Trusted {
    fn verify_server_cert(
        &self,
        server: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.given.iter().any(|each| each == server) {
            verify_server_name(&ParsedCertificate::try_from(server)?, name)?;
            return Ok(ServerCertVerified::assertion());
        }
        self.webpki.verify_server_cert(server, intermediates, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.webpki.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.webpki.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}

fn invalid(why: String) -> Error {
    Error::new(ErrorKind::Invalid, why)
}
